package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const headerSize = HdrFlags + unit

// ErrNotRing says that a file is not a ring, or not one that can be trusted to keep its
// size. It comes wrapped with the reason.
var ErrNotRing = errors.New("not a ring of this version")

// Ring is a ring mapped into this process. Its counters may be read from any goroutine;
// records are consumed by one Reader.
type Ring struct {
	Layout
	mem    []byte
	reader *Reader // the last that was made; nil: none was
	fd     int     // -1: the memory is somebody else's (On)
	sparse *sparse // nil: all pages of records are there
}

func (r *Ring) writeHeader() {
	version, flags := uint64(Version), uint64(0)
	if r.LockedOnly {
		version, flags = VersionFlags, FlagLockedOnly
	}
	store(r.mem, HdrVersion, version)
	store(r.mem, HdrFlags, flags)
	store(r.mem, HdrNCPU, uint64(r.CPUs))
	store(r.mem, HdrEvents, uint64(r.Events))
	store(r.mem, HdrData, r.Data)
	store(r.mem, HdrStride, r.Stride)
	store(r.mem, HdrMagic, Magic)
}

// parseHeader makes a Layout of a header that anyone may have written.
func parseHeader(b []byte) (Layout, error) {
	field := func(off int) uint64 { return binary.NativeEndian.Uint64(b[off:]) }
	if m := field(HdrMagic); m != Magic {
		return Layout{}, fmt.Errorf("magic %#x: %w", m, ErrNotRing)
	}
	version, flags := field(HdrVersion), field(HdrFlags)
	if version != Version && version != VersionFlags {
		return Layout{}, fmt.Errorf("layout version %d, this program reads %d and %d: %w", version, Version, VersionFlags, ErrNotRing)
	}
	if known := uint64(FlagLockedOnly); flags&^known != 0 || version == Version && flags != 0 {
		return Layout{}, fmt.Errorf("flags %#x in a ring of version %d: %w", flags, version, ErrNotRing)
	}
	cpus, events, data := field(HdrNCPU), field(HdrEvents), field(HdrData)
	if cpus > MaxCPUs || events == 0 || events > MaxEvents || data == 0 || data > MaxData {
		return Layout{}, fmt.Errorf("header says %d CPUs, %d events, %d bytes of data: %w", cpus, events, data, ErrNotRing)
	}
	l, err := NewLayout(Config{CPUs: int(cpus), Events: int(events), DataSize: int(data), LockedOnly: flags&FlagLockedOnly != 0})
	if err != nil {
		return Layout{}, fmt.Errorf("header: %w: %w", err, ErrNotRing)
	}
	if s := field(HdrStride); s != l.Stride {
		return Layout{}, fmt.Errorf("stride %d, the layout has %d: %w", s, l.Stride, ErrNotRing)
	}
	return l, nil
}

// Counters are the counts of one event.
type Counters struct {
	Hits    uint64 // runs of a probe that only counts
	Lost    uint64 // records dropped because a shard was full; of a probe that counts what passes its filter, what did not
	Missed  uint64 // entries of a return probe with no free instance
	Unwound uint64 // instances found abandoned
}

// Sum adds up the counters of an event over all shards. Every counter is read
// atomically; the sum is exact once the writers are quiet. An event outside of the
// table has none.
func (r *Ring) Sum(event int) Counters {
	var c Counters
	if event < 0 || event >= r.Events {
		return c
	}
	for i := range r.Shards() {
		off := r.ShardOff(i) + r.CounterOff(event)
		c.Hits += load(r.mem, off+CtrHits)
		c.Lost += load(r.mem, off+CtrLost)
		c.Missed += load(r.mem, off+CtrMissed)
		c.Unwound += load(r.mem, off+CtrUnwound)
	}
	return c
}

// ClearCounters sets an event's counters to zero, for a number that is used again.
//
// Preconditions: no generated code counts for the event any more.
func (r *Ring) ClearCounters(event int) {
	if event < 0 || event >= r.Events {
		return
	}
	for i := range r.Shards() {
		off := r.ShardOff(i) + r.CounterOff(event)
		clear(r.mem[off : off+CounterSize])
	}
}
