package patch

import (
	"cmp"
	"slices"

	"kprobes.dev/kprobes/internal/target"
)

// Threads says what a change means for threads, by the address at which they go on. It does not change once it is made.
// Its methods that take an address allocate nothing, call nothing of the runtime, and need no lock: they may run while the
// own process is stopped.
type Threads struct {
	inside     []inside  // sorted by from
	leave      []leaving // sorted by lo
	out        []outway  // sorted by from
	old        []span    // patches that go, sorted
	add        []*target.Site
	low, high  span // where inside lies, where leave lies
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
	// come. It goes on in the new detour, where the work of that instruction begins.
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

// span is the addresses [lo, hi).
type span struct{ lo, hi uint64 }

//go:norace
func (s *span) holds(a uint64) bool { return a-s.lo < s.hi-s.lo }

func (s *span) add(lo, hi uint64) {
	if s.lo == s.hi {
		*s = span{lo, hi}
		return
	}
	s.lo, s.hi = min(s.lo, lo), max(s.hi, hi)
}

// inside is an address at which no thread may go on in the program's own code, once a site is armed.
type inside struct {
	from, to uint64
	site     int32
}

// leaving is a detour that threads must not finish in.
type leaving struct {
	span
	harms []int32 // the new sites that its way back leads into
}

// outway is where a thread goes on that is at an exact place of a detour that goes.
type outway struct{ from, to, sp uint64 }

// NewThreads prepares a change: add are its new sites, remove those that it takes out, retired such as were taken out before
// and whose detours may still be in use.
func NewThreads(add, remove, retired []*target.Site, p Policy) *Threads {
	t := &Threads{add: sorted(add, addrOf), every: p.EveryByte}
	t.findInside()
	if p.MoveOut {
		t.findOld(remove)
	}
	var leave []*target.Site
	for _, s := range remove {
		if p.MoveOut || t.harms(s) != nil {
			leave = append(leave, s)
		}
	}
	for _, s := range retired {
		if t.harms(s) != nil {
			leave = append(leave, s)
		}
	}
	t.findOut(sorted(leave, detourOf))
	if n := len(t.inside); n > 0 {
		t.low = span{t.inside[0].from, t.inside[n-1].from + 1}
	}
	if n := len(t.leave); n > 0 {
		t.high = span{t.leave[0].lo, t.leave[n-1].hi}
	}
	return t
}

// sorted gives sites in the order of an address of theirs, and those with the same one in the order in which they are.
func sorted(sites []*target.Site, of func(*target.Site) uint64) []*target.Site {
	type keyed struct {
		key uint64
		i   int
	}
	keys, rises := make([]keyed, len(sites)), true
	for i, s := range sites {
		keys[i] = keyed{of(s), i}
		rises = rises && (i == 0 || keys[i-1].key <= keys[i].key)
	}
	if rises {
		return sites
	}
	slices.SortFunc(keys, func(a, b keyed) int {
		switch {
		case a.key < b.key || a.key == b.key && a.i < b.i:
			return -1
		case a == b:
			return 0
		}
		return 1
	})
	out := make([]*target.Site, len(sites))
	for i, k := range keys {
		out[i] = sites[k.i]
	}
	return out
}

func addrOf(s *target.Site) uint64 { return s.Addr }

func detourOf(s *target.Site) uint64 { return s.Detour.Addr }

// roomOf is where a site's detour stands.
func roomOf(s *target.Site) span { return span{s.Detour.Addr, s.Detour.Addr + uint64(s.Room)} }

// sortStable sorts what is mostly in order.
func sortStable[T any](s []T, compare func(a, b T) int) {
	if !slices.IsSortedFunc(s, compare) {
		slices.SortStableFunc(s, compare)
	}
}

// findInside lists the addresses inside new patches. Of two sites with an address the first counts.
func (t *Threads) findInside() {
	if len(t.add) == 0 {
		return
	}
	t.inside = make([]inside, 0, 2*len(t.add)) // what most need
	for i, s := range t.add {
		for _, p := range s.Detour.Pairs {
			if s.Inside(p.Orig) {
				t.inside = append(t.inside, inside{p.Orig, s.Detour.Begin(p), int32(i)})
			}
		}
		for n := 1; t.every && n < len(s.Patch); n++ {
			at := s.Addr + uint64(n)
			t.inside = append(t.inside, inside{at, at, int32(i)})
		}
	}
	sortStable(t.inside, func(a, b inside) int { return cmp.Compare(a.from, b.from) })
}

// findOld lists the patches that go.
func (t *Threads) findOld(remove []*target.Site) {
	t.old = make([]span, 0, len(remove))
	for _, s := range sorted(remove, addrOf) {
		t.old = append(t.old, span{s.Addr, s.Addr + uint64(len(s.Patch))})
	}
	for _, s := range t.add {
		if t.returnsOld || len(t.old) == 0 {
			break
		}
		for _, p := range s.Detour.Pairs {
			t.returnsOld = t.returnsOld || p.Copy == s.Detour.Back && t.InOld(p.Orig)
		}
	}
}

// harms lists the new sites that the way back of a site's detour leads into.
func (t *Threads) harms(s *target.Site) (harms []int32) {
	if len(t.inside) == 0 {
		return nil
	}
	for _, p := range s.Detour.Pairs {
		if p.Copy != s.Detour.Back {
			continue
		}
		if i := t.findFrom(p.Orig); i >= 0 {
			harms = append(harms, t.inside[i].site)
		}
	}
	return harms
}

// findOut lists the detours that threads leave, and their exact places. At a point the work is still to be done, at the copy of
// an instruction of the region it has been done and is not to be done again. What else a detour tells of, what is behind the
// region or is called by it, is reached as by any other jump. Sites are in the order of their detours.
func (t *Threads) findOut(sites []*target.Site) {
	if len(sites) == 0 {
		return
	}
	at := landingsOf(t.add)
	t.leave, t.out = make([]leaving, 0, len(sites)), make([]outway, 0, 5*len(sites)) // what most need
	for _, s := range sites {
		t.leave = append(t.leave, leaving{roomOf(s), t.harms(s)})
		n := len(t.out)
		for _, b := range s.Detour.Points {
			t.out = append(t.out, outway{from: b.At, to: at.begin(b.Point)})
		}
		for _, p := range s.Detour.Pairs {
			to := at.begin(p.Orig)
			if s.Holds(p.Orig) {
				to = at.copy(p.Orig)
			}
			t.out = append(t.out, outway{from: p.Copy, to: to, sp: p.SP})
		}
		sortStable(t.out[n:], func(a, b outway) int { return cmp.Compare(a.from, b.from) })
	}
}

// landings are the instructions of the regions of new sites, sorted by orig: begin is where the work of each begins, copy its
// copy. A thread that ran one in the program's own code, behind the patch, would pass its work. What is
// behind a region, or what it calls, is none: its work may have been done, or is to be done.
type landings []landing

type landing struct{ orig, begin, copy uint64 }

func landingsOf(add []*target.Site) landings {
	if len(add) == 0 {
		return nil
	}
	ls := make(landings, 0, 4*len(add)) // what most need
	for _, s := range add {
		for _, p := range s.Detour.Pairs {
			if s.Holds(p.Orig) {
				ls = append(ls, landing{p.Orig, s.Detour.Begin(p), p.Copy})
			}
		}
	}
	sortStable(ls, func(a, b landing) int { return cmp.Compare(a.orig, b.orig) }) // of an instruction the first counts
	return ls
}

func (ls landings) find(orig uint64) (landing, bool) {
	lo, hi := 0, len(ls)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); ls[mid].orig < orig {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(ls) && ls[lo].orig == orig {
		return ls[lo], true
	}
	return landing{}, false
}

func (ls landings) begin(orig uint64) uint64 {
	if l, ok := ls.find(orig); ok {
		return l.begin
	}
	return orig
}

func (ls landings) copy(orig uint64) uint64 {
	if l, ok := ls.find(orig); ok {
		return l.copy
	}
	return orig
}

// Standing says what becomes of a thread that stands at an address and can be moved.
//
//go:norace
func (t *Threads) Standing(at uint64) Way {
	if t.low.holds(at) {
		if i := t.findFrom(at); i >= 0 {
			return Way{Fate: Moves, To: t.inside[i].to}
		}
	}
	if l := t.findLeaving(at); l >= 0 {
		if i := t.findWay(at); i >= 0 {
			return Way{Fate: Leaves, To: t.out[i].to, SP: t.out[i].sp}
		}
		if len(t.leave[l].harms) > 0 {
			return Way{Fate: Blocks, To: at}
		}
	}
	return Way{To: at}
}

// Returning says whether the change must not be made because a thread will go on at an address and cannot be moved: the
// address stands in a saved context, in a return address or in a register, or the thread itself cannot be reached.
//
//go:norace
func (t *Threads) Returning(at uint64) bool {
	if t.low.holds(at) && t.findFrom(at) >= 0 {
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
	if t.low.holds(at) {
		if i := t.findFrom(at); i >= 0 {
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
			b.add(l.lo, l.hi)
		}
	}
	return b.lo, b.hi
}

// InOld says whether an address is inside a patch that goes, behind its first byte. It needs Policy.MoveOut.
func (t *Threads) InOld(at uint64) bool {
	i, _ := slices.BinarySearchFunc(t.old, at, func(s span, a uint64) int { return cmp.Compare(s.lo, a) })
	return i > 0 && at < t.old[i-1].hi // the last that begins before
}

// ReturnsIntoOld says whether the detour of a new site leads back into a patch that goes, so that the old patches must be taken
// out before any thread goes to a new detour. It needs Policy.MoveOut.
func (t *Threads) ReturnsIntoOld() bool { return t.returnsOld }

// findFrom gives the number of an address inside a new patch, -1 if it is none.
//
//go:norace
func (t *Threads) findFrom(at uint64) int {
	lo, hi := 0, len(t.inside)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); t.inside[mid].from < at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(t.inside) && t.inside[lo].from == at {
		return lo
	}
	return -1
}

// findWay gives the number of an exact place of a detour that goes, -1 if it is none.
//
//go:norace
func (t *Threads) findWay(at uint64) int {
	lo, hi := 0, len(t.out)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); t.out[mid].from < at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(t.out) && t.out[lo].from == at {
		return lo
	}
	return -1
}

// findLeaving gives the number of the detour that an address is in, if the detour goes, else -1.
//
//go:norace
func (t *Threads) findLeaving(at uint64) int {
	if !t.high.holds(at) {
		return -1
	}
	lo, hi := 0, len(t.leave)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); t.leave[mid].hi <= at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(t.leave) && t.leave[lo].lo <= at {
		return lo
	}
	return -1
}
