package process

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/procfs"
)

// crowdWindow is what Crowded looks at of a pool that has no count, in bytes.
const crowdWindow = 64 << 10

// Crowded says whether half of the instances of a pool with a maximum are taken, or more than
// an eighth of the slots in a part of another one, each time another part.
func (t *Target) Crowded() bool {
	for _, u := range t.pools {
		if t.idle[u.pool] {
			continue
		}
		if u.pool.Max > 0 {
			var b [4]byte
			if t.p.ReadMem(u.pool.Active, b[:]) == nil && 2*le.Uint32(b[:]) >= u.pool.Max {
				return true
			}
			continue
		}
		if t.crowdedPart(u.pool) {
			return true
		}
	}
	return false
}

func (t *Target) crowdedPart(p *arch.Pool) bool {
	size := native.PoolBytes(p.Slots, p.Stride)
	lo := procfs.PageDown(p.Base + t.part%size)
	t.part += crowdWindow
	in := t.p.Present(lo, lo+crowdWindow)
	taken := uint64(0)
	for _, r := range in {
		b := make([]byte, r.Size())
		if t.p.ReadMem(r.Start, b) != nil {
			return false
		}
		for at := max(r.Start, p.Base) - r.Start; at+8 <= uint64(len(b)) && r.Start+at < p.Base+size; at += 1 << p.Stride {
			if le.Uint64(b[at:]) != 0 {
				taken++
			}
		}
	}
	return taken > crowdWindow>>p.Stride/8
}

// EndPool takes back a pool that Pool gave for one probe alone, whose code has been taken out.
// It serves again once no call has an instance in it.
func (t *Target) EndPool(p *arch.Pool) {
	if p.Max == 0 {
		return
	}
	if t.idle == nil {
		t.idle = map[*arch.Pool]bool{}
	}
	t.idle[p] = true
}

// idlePool gives a pool of a kind that no probe uses; nil: there is none.
func (t *Target) idlePool(slots, stride int, limit uint32) *arch.Pool {
	for p := range t.idle {
		if p.Slots == slots && p.Stride == stride && t.Idle() && t.vacant(p) {
			delete(t.idle, p)
			p.Max = limit
			return p
		}
	}
	return nil
}

// vacant says whether no slot of a pool is taken.
func (t *Target) vacant(p *arch.Pool) bool {
	b := make([]byte, native.PoolBytes(p.Slots, p.Stride))
	if t.p.ReadMem(p.Base, b) != nil {
		return false
	}
	for at := 0; at < len(b); at += 1 << p.Stride {
		if le.Uint64(b[at:]) != 0 {
			return false
		}
	}
	return t.p.WriteMem(p.Active, make([]byte, 4)) == nil
}
