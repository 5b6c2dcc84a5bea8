package guest

import (
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// Sizes of pools, log2.
const (
	poolStep    = 6  // bytes of a slot in the shared pool
	minSlots    = 6  // slots
	lowSlots    = 8  // of the shared pool below 1 MiB
	sharedSlots = 16 // of the shared pool in ivshmem memory, at most
)

// Pool gives the table for a return probe's instances.
func (t *Target) Pool(n, limit int) (*arch.Pool, error) {
	p := arch.Pool{Slots: t.poolSlots(), Stride: max(native.SlotStride(n), poolStep), Max: uint32(max(limit, 0))}
	if limit > 0 {
		p.Slots = max(minSlots, bits.Len(uint(4*limit-1)))
	}
	for _, o := range t.pools {
		if o.Slots != p.Slots || o.Stride != p.Stride {
			continue
		}
		if limit <= 0 && o.Max == 0 {
			return o, nil
		}
		if limit > 0 && t.idle[o] && t.quiescent() {
			delete(t.idle, o)
			clear(t.poolMem(o)) // of calls that were in progress when its probe went
			o.Max = p.Max
			return o, nil
		}
	}
	size := poolSize(&p)
	if t.heap+size > len(t.lay.data.mem) {
		return nil, errno.Errorf(unix.ENOSPC, "a pool of %d instances takes %d bytes: the guest's memory for them has %d left; give it a larger ivshmem device",
			1<<p.Slots, size, len(t.lay.data.mem)-t.heap)
	}
	p.Base = t.lay.data.va + uint64(t.heap)
	p.Active = p.Base + uint64(size) - 64
	t.heap += size
	t.pools = append(t.pools, &p)
	return &p, nil
}

// quiescent looks whether a thread is in the code of a site that was removed.
func (t *Target) quiescent() bool {
	if t.Idle() {
		return true
	}
	err := t.stopped(func(s *qemu.Stop) error { return t.look(s, &target.Change{}) })
	return err == nil && t.Idle()
}

// EndPool takes back a pool that Pool gave for one probe alone, whose sites are not armed any
// more. It serves again once no thread is in the code of a site that was removed.
func (t *Target) EndPool(p *arch.Pool) {
	if p.Max == 0 || !slices.Contains(t.pools, p) {
		return
	}
	if t.idle == nil {
		t.idle = map[*arch.Pool]bool{}
	}
	t.idle[p] = true
}

// poolMem is a pool's memory, with the count of its instances.
func (t *Target) poolMem(p *arch.Pool) []byte {
	return t.lay.data.mem[p.Base-t.lay.data.va:][:poolSize(p)]
}

// poolSize is what a pool takes: its table, and a cache line for the count of its instances.
func poolSize(p *arch.Pool) int { return int(native.PoolBytes(p.Slots, p.Stride)+63)&^63 + 64 }

// poolSlots is the size of the pool that return probes share.
func (t *Target) poolSlots() int {
	if !t.lay.shared {
		return lowSlots
	}
	return min(sharedSlots, bits.Len(uint(len(t.lay.data.mem)))-1-2-poolStep)
}
