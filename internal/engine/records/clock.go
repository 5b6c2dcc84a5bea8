package records

import (
	"time"

	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// clock turns the ticks of records into nanoseconds.
type clock interface {
	sync() error
	nanos(tick uint64, cpu int) uint64
	tick() (uint64, error) // its length in nanoseconds, with 32 bits behind the point
}

// counterClock is this machine's counter.
type counterClock struct{ c *ring.Clock }

func (k counterClock) sync() error                     { return k.c.Sync() }
func (k counterClock) nanos(tick uint64, _ int) uint64 { return k.c.Nanos(tick) }
func (k counterClock) tick() (uint64, error)           { return uint64(k.c.Rate() * (1 << 32)), nil }

// ownClock is the clock of a target that has its own. It may be set between two records that are converted, by
// itself or by that of the other's CPU, but is not seen to run back.
type ownClock struct {
	t    target.Clocked
	last uint64
}

func (*ownClock) sync() error { return nil }

func (k *ownClock) tick() (uint64, error) { return k.t.Tick() }

func (k *ownClock) nanos(tick uint64, cpu int) uint64 {
	k.last = max(k.last, k.t.Nanos(tick, cpu))
	return k.last
}

// holdRecords is how long a record waits for older ones of other CPUs.
const holdRecords = 4 * time.Millisecond

// SettleTime is longer than records are held back until those of all CPUs can be put in the order of their times: holdRecords, or 4e6
// ticks of the processor's counter (ring.ReaderConfig). A Poll behind it gives all that an earlier one has found.
const SettleTime = 5 * time.Millisecond
