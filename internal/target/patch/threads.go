package patch

import (
	"cmp"
	"slices"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

// Threads says what a change means for threads, by the address at which they go on. It does not change once it is made.
// Its methods that take an address allocate nothing, call nothing of the runtime, and need no lock: they may run while the
// own process is stopped.
type Threads struct {
	inside     []place          // where no thread may go on in the program's own code once the sites are armed; sorted by from
	leave      []leaving        // detours that no thread may finish in; sorted
	out        []place          // exact places of these; sorted by from
	old        []interval.Range // patches that go; sorted
	add        []*target.Site
	low, high  interval.Range // where inside lies, where leave lies
	returnsOld bool
	every      bool
}

// Policy is in what targets differ.
type Policy struct {
	// MoveOut: threads are moved out of all detours that go, so that these can be freed. Else a thread finishes in a detour
	// whose way back does not change.
	MoveOut bool
	// EveryByte: a saved address inside a new patch blocks it, though no instruction begins there.
	EveryByte bool
}

// Fate is what becomes of a thread in a change.
type Fate uint8

// Fates.
const (
	// Stays: no code changes that the thread is about to run.
	Stays Fate = iota
	// Moves: the thread is about to run an instruction inside a new patch, or behind it with work of a probe still to
	// come. It goes on in the new detour, where the work of that instruction begins; in a system call at its copy.
	Moves
	// Leaves: the thread is in a detour that goes, between two instructions of the program. It goes on at the same place of
	// the new detour, or in the program's own code. If it was about to step a copied instruction it does so no more.
	Leaves
	// Blocks: the thread is in a detour that goes, in the work of a probe or in the middle of an instruction, and would come
	// back into a new patch.
	Blocks
)

// Way is where a thread goes on.
type Way struct {
	Fate Fate
	To   uint64 // the address
	SP   uint64 // is added to its stack pointer
}

// place is where a thread may be that does not stay there.
type place struct {
	from, to uint64
	sp       uint64 // is added to its stack pointer
	site     int32  // number of the new site that it is inside of
}

// leaving is a detour.
type leaving struct {
	interval.Range
	harms []int32 // the new sites that its way back leads into
}

// Standing says what becomes of a thread that stands at an address and can be moved.
//
//go:norace
func (t *Threads) Standing(at uint64) Way {
	if t.low.Contains(at) {
		if i := find(t.inside, at); i >= 0 {
			return Way{Fate: Moves, To: t.inside[i].to}
		}
	}
	if l := t.findLeaving(at); l >= 0 {
		if i := find(t.out, at); i >= 0 {
			return Way{Fate: Leaves, To: t.out[i].to, SP: t.out[i].sp}
		}
		if len(t.leave[l].harms) > 0 {
			return Way{Fate: Blocks, To: at}
		}
	}
	return Way{To: at}
}

// Calling is Standing for a thread that waits in a system call, made by the instruction at call. The thread makes the call again, or
// goes on at after if a signal ends it. Where a new patch begins at the call, so that after is inside, the thread waits in the call of the new detour.
//
//go:norace
func (t *Threads) Calling(call, after uint64) Way {
	w := t.Standing(call)
	if w.Fate != Stays || !t.low.Contains(after) {
		return w
	}
	i := find(t.inside, after)
	if i < 0 {
		return w
	}
	for _, p := range t.add[t.inside[i].site].Detour.Pairs {
		if p.Orig == call {
			return Way{Fate: Moves, To: p.Copy}
		}
	}
	return Way{Fate: Blocks, To: after}
}

// Returning says whether the change must not be made because a thread will go on at an address and cannot be moved: the
// address stands in a saved context, in a return address or in a register, or the thread itself cannot be reached.
//
//go:norace
func (t *Threads) Returning(at uint64) bool {
	if t.low.Contains(at) && find(t.inside, at) >= 0 {
		return true
	}
	l := t.findLeaving(at)
	return l >= 0 && len(t.leave[l].harms) > 0
}

// Anywhere says whether the change must not be made because a thread may go on at any address.
//
//go:norace
func (t *Threads) Anywhere() bool { return len(t.inside) > 0 }

// AnyDetour says whether the change must not be made because a thread may go on at any address of any detour.
//
//go:norace
func (t *Threads) AnyDetour() bool {
	for i := range t.leave {
		if len(t.leave[i].harms) > 0 {
			return true
		}
	}
	return false
}

// Blocked gives f the new sites that must not be armed because a thread will go on at an address (Returning), and says
// whether that is in a detour.
func (t *Threads) Blocked(at uint64, f func(s *target.Site, inDetour bool)) {
	if t.low.Contains(at) {
		if i := find(t.inside, at); i >= 0 {
			f(t.add[t.inside[i].site], false)
		}
	}
	if l := t.findLeaving(at); l >= 0 {
		for _, i := range t.leave[l].harms {
			f(t.add[i], true)
		}
	}
}

// BlockedAnywhere gives f the new sites that must not be armed because of Anywhere.
func (t *Threads) BlockedAnywhere(f func(s *target.Site)) {
	for i := range t.inside {
		f(t.add[t.inside[i].site])
	}
}

// BlockedAnyDetour gives f the new sites that must not be armed because of AnyDetour.
func (t *Threads) BlockedAnyDetour(f func(s *target.Site)) {
	for i := range t.leave {
		for _, n := range t.leave[i].harms {
			f(t.add[n])
		}
	}
}

// Bounds is the range of addresses outside of which Returning is true for none. It may be empty.
func (t *Threads) Bounds() (lo, hi uint64) {
	b := t.low
	for i := range t.leave {
		if l := &t.leave[i]; len(l.harms) > 0 {
			b = b.Union(l.Range)
		}
	}
	return b.Start, b.End
}

// InOld says whether an address is inside a patch that goes, behind its first byte. It needs Policy.MoveOut.
func (t *Threads) InOld(at uint64) bool {
	i, _ := slices.BinarySearchFunc(t.old, at, func(s interval.Range, a uint64) int { return cmp.Compare(s.Start, a) })
	return i > 0 && at < t.old[i-1].End // the last that begins before
}

// ReturnsIntoOld says whether the detour of a new site leads back into a patch that goes, so that the old patches must be taken
// out before any thread goes to a new detour. It needs Policy.MoveOut.
func (t *Threads) ReturnsIntoOld() bool { return t.returnsOld }

// find gives the number of the place at an address, the first of several; -1: there is none.
//
//go:norace
func find(ps []place, at uint64) int {
	lo, hi := 0, len(ps)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); ps[mid].from < at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(ps) && ps[lo].from == at {
		return lo
	}
	return -1
}

// findLeaving gives the number of the detour that an address is in, if the detour goes, else -1.
//
//go:norace
func (t *Threads) findLeaving(at uint64) int {
	if !t.high.Contains(at) {
		return -1
	}
	lo, hi := 0, len(t.leave)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); t.leave[mid].End <= at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(t.leave) && t.leave[lo].Start <= at {
		return lo
	}
	return -1
}
