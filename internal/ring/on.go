package ring

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// On lays a ring over the start of mem, memory that somebody else has mapped and shares with
// the writers, and zeroes that part of it. mem must start at a multiple of 8 and stay mapped
// until the ring and its readers are no longer used; Close of the ring neither unmaps nor
// closes anything. cfg.CPUs must be given. Errors are unix.EINVAL for a Config out of bounds
// and for mem that is not aligned, unix.ENOSPC where mem is too small.
//
// A ring takes a page and Layout.Stride for each shard. A shard is a page, 32 bytes for each
// event rounded up to pages, DataSize and Slack, rounded up to a power of two: 64 KiB for up
// to 128 events and up to 16 KiB of data. So the smallest ring of one CPU takes 68 KiB with
// LockedOnly, and of two CPUs 132 KiB.
func On(mem []byte, cfg Config) (*Ring, error) {
	l, err := NewLayout(cfg)
	if err != nil {
		return nil, err
	}
	if uint64(len(mem)) < l.Size() {
		return nil, fmt.Errorf("ring: %d bytes of memory, a ring of %d CPUs, %d events and %d bytes of data takes %d: take less of them: %w",
			len(mem), l.CPUs, l.Events, l.Data, l.Size(), unix.ENOSPC)
	}
	r := &Ring{Layout: l, mem: mem[:l.Size():l.Size()], fd: -1}
	if a := r.Addr(); a%unit != 0 {
		return nil, fmt.Errorf("ring: memory at 0x%x: must start at a multiple of %d: %w", a, unit, unix.EINVAL)
	}
	clear(r.mem)
	r.writeHeader()
	return r, nil
}

// Keep makes a copy of the ring's memory, which the ring and its reader use from now on: the
// memory that On was given is its owner's again. What counters and records tell stays.
//
// Preconditions: no writer is left, and nobody uses the ring or its reader meanwhile.
func (r *Ring) Keep() {
	words := make([]uint64, len(r.mem)/unit)
	mem := bytesOf(words)
	copy(mem, r.mem)
	r.mem = mem
	if r.reader != nil {
		for _, s := range r.reader.shards {
			s.bind()
		}
	}
}
