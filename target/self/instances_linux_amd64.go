package self

import (
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/target"
)

// goroutine is a goroutine as a stopped world shows it.
type goroutine struct{ id, sp, lo, hi uint64 }

// list lists all goroutines that have a stack into p.goroutines, which must have room.
//
//go:norace
func (p *plan) list(w *worldState) {
	list, n := word(p.places.allgs), word(p.places.allgs+8)
	p.counted = 0
	for i := uint64(0); i < n && p.counted < len(p.goroutines); i++ {
		g := word(list + 8*i)
		lo, hi := word(g+uint64(p.lay.StackLo)), word(g+uint64(p.lay.StackHi))
		if status := uint32(word(g+uint64(p.lay.Status))) &^ gScan; lo == 0 || status == gIdle || status == gDead || status == gExtra {
			continue
		}
		sp := word(g + uint64(p.lay.SchedSP))
		for j := uint32(0); j < w.asked; j++ {
			if s := &w.slots[w.list[j]]; uint64(s.g) == g && s.state&3 == slotParked {
				sp = word(uint64(s.uc) + ucRSP)
			}
		}
		if g == p.own || sp < lo || sp > hi {
			sp = lo // not known: all of it may be in use
		}
		p.goroutines[p.counted] = goroutine{word(g + uint64(p.lay.GoID)), sp, lo, hi}
		p.counted++
	}
}

// Statuses of goroutines that have no calls in progress (runtime/runtime2.go).
const (
	gIdle  = 0
	gDead  = 6
	gExtra = 11
	gScan  = 0x1000
)

// Instances classifies the instances in the pools: per event those whose call is still in
// progress and those left by unwinding. Calls that begin or end meanwhile may be told either
// way.
func (t *Target) Instances() (active, unwound map[int]int, err error) {
	active, unwound = map[int]int{}, map[int]int{}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.control == nil || len(t.pools) == 0 {
		return active, unwound, nil
	}
	p := t.newPlan(&target.Change{})
	p.heads = *p.control
	p.goroutines = make([]goroutine, word(t.places.allgs+8)+goroutineSlack)
	p.own = currentG()
	if err := t.attempt(p); err != nil {
		return nil, nil, err
	}
	gs := map[uint64]goroutine{}
	for _, g := range p.goroutines[:p.counted] {
		gs[g.id] = g
	}
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	for _, pool := range t.pools {
		t.classify(bytesAt(pool.Base, int(amd64.PoolBytes(pool.Slots, pool.Stride))), 1<<pool.Stride, gs, active, unwound)
	}
	return active, unwound, nil
}

// goroutineSlack is room for goroutines that come before the world stops.
const goroutineSlack = 1024

func (t *Target) classify(table []byte, stride int, gs map[uint64]goroutine, active, unwound map[int]int) {
	for at := 0; at < len(table); at += stride {
		i, ok := amd64.ReadInstance(table[at:at+amd64.SlotHeader], true)
		switch {
		case !ok:
		case t.inProgress(i, gs):
			active[i.Event]++
		default:
			unwound[i.Event]++
		}
	}
}

// inProgress says whether the call of an instance has not ended: its return address still
// stands in the used part of its stack.
func (t *Target) inProgress(i amd64.Instance, gs map[uint64]goroutine) bool {
	at := i.SP
	if at == 0 {
		g, ok := gs[i.GoID]
		if !ok || g.hi-i.Distance < g.sp {
			return false
		}
		at = g.hi - i.Distance
	}
	var b [8]byte
	return t.Read(at, b[:]) == nil && le.Uint64(b[:]) == i.Return
}
