package ring

import (
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Config says how large a ring is. Zero fields mean the default.
type Config struct {
	CPUs     int // possible CPUs (the highest CPU number + 1); default: this machine's
	Events   int // events that have counters, at most MaxEvents; default DefaultEvents
	DataSize int // bytes of records in a shard, a power of two from MinData to MaxData; default DefaultData
	// LockedOnly leaves the rseq shards out, which halves the ring: for writers that have
	// no restartable sequences, as in a kernel. The smallest ring has one shard of 64 KiB
	// a CPU and one page before them (see On).
	LockedOnly bool
	// Sparse leaves the records' pages to PrepareShard and the reader (CreateOn, Create).
	Sparse bool
}

// Layout is the geometry of a ring. All methods are pure; what generated code knows
// of a ring comes from here.
type Layout struct {
	CPUs   int    // shards cpu (rseq) and CPUs+cpu (locked); LockedOnly: cpu (locked)
	Events int    // entries of a shard's counter table
	Data   uint64 // bytes of data in a shard, a power of two
	Stride uint64 // bytes from one shard to the next, a power of two
	// LockedOnly says that there are no rseq shards.
	LockedOnly bool
}

// NewLayout checks cfg, whose zero fields (but CPUs, which must be given here) take
// their defaults. An impossible value answers to unix.EINVAL.
func NewLayout(cfg Config) (Layout, error) {
	if cfg.Events == 0 {
		cfg.Events = DefaultEvents
	}
	if cfg.DataSize == 0 {
		cfg.DataSize = DefaultData
	}
	switch {
	case cfg.CPUs < 1 || cfg.CPUs > MaxCPUs:
		return Layout{}, fmt.Errorf("ring: cpus %d: must be 1 to %d: %w", cfg.CPUs, MaxCPUs, unix.EINVAL)
	case cfg.Events < 1 || cfg.Events > MaxEvents:
		return Layout{}, fmt.Errorf("ring: events %d: must be 1 to %d: %w", cfg.Events, MaxEvents, unix.EINVAL)
	case cfg.DataSize < MinData || cfg.DataSize > MaxData || cfg.DataSize&(cfg.DataSize-1) != 0:
		return Layout{}, fmt.Errorf("ring: data size %d: must be a power of two from %d to %d: %w", cfg.DataSize, MinData, MaxData, unix.EINVAL)
	}
	l := Layout{CPUs: cfg.CPUs, Events: cfg.Events, Data: uint64(cfg.DataSize), LockedOnly: cfg.LockedOnly}
	l.Stride = 1 << bits.Len64(l.DataOff()+l.Data+Slack-1)
	return l, nil
}

// Shards is the number of shards: two per CPU, or one if LockedOnly.
func (l Layout) Shards() int { return l.Locked(l.CPUs) }

// Locked is the number of the locked shard of a CPU; the rseq shard, if there is one, has
// the CPU's own number.
func (l Layout) Locked(cpu int) int {
	if l.LockedOnly {
		return cpu
	}
	return l.CPUs + cpu
}

// IsLocked tells the two kinds of shard apart.
func (l Layout) IsLocked(shard int) bool { return shard >= l.Locked(0) }

// Size is the size of the mapping in bytes.
func (l Layout) Size() uint64 { return PageSize + uint64(l.Shards())*l.Stride }

// ShardOff is where a shard starts, in bytes from the start of the mapping.
func (l Layout) ShardOff(shard int) uint64 { return PageSize + uint64(shard)*l.Stride }

// CounterOff is where the counters of an event are, in bytes from the start of a shard;
// add CtrHits, CtrLost and so on.
func (l Layout) CounterOff(event int) uint64 { return ShCounters + uint64(event)*CounterSize }

// DataOff is where the data is, in bytes from the start of a shard.
func (l Layout) DataOff() uint64 {
	return ShCounters + (uint64(l.Events)*CounterSize+PageSize-1)&^uint64(PageSize-1)
}

// Units is what an rseq shard holds unread, in units of 8 bytes. A position's place in
// the data is position % Units.
func (l Layout) Units() uint64 { return l.Data / unit }

// LockedUnits is what a locked shard holds unread, in units of 8 bytes. It is less than
// Units where the data is larger than 1 MiB (see protocol.go, "Why the count is exact").
func (l Layout) LockedUnits() uint64 { return min(l.Data, lockedBytes) / unit }
