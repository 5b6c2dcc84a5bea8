package patch

import (
	"cmp"
	"slices"
	"sort"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

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
		t.low = interval.Range{Start: t.inside[0].from, End: t.inside[n-1].from + 1}
	}
	if n := len(t.leave); n > 0 {
		t.high = interval.Range{Start: t.leave[0].Start, End: t.leave[n-1].End}
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
	sort.Slice(keys, func(i, j int) bool {
		a, b := keys[i], keys[j]
		return a.key < b.key || a.key == b.key && a.i < b.i
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
func roomOf(s *target.Site) interval.Range {
	return interval.Range{Start: s.Detour.Addr, End: s.Detour.Addr + uint64(s.Room)}
}

// sortStable sorts what is mostly in order. It is not the generic function, whose code an importing program would have once for each type.
func sortStable[T any](s []T, compare func(a, b T) int) {
	if !slices.IsSortedFunc(s, compare) {
		sort.SliceStable(s, func(i, j int) bool { return compare(s[i], s[j]) < 0 })
	}
}

// findInside lists the addresses inside new patches. Of two sites with an address the first counts.
func (t *Threads) findInside() {
	if len(t.add) == 0 {
		return
	}
	t.inside = make([]place, 0, 2*len(t.add)) // what most need
	for i, s := range t.add {
		for _, p := range s.Detour.Pairs {
			if s.Inside(p.Orig) {
				t.inside = append(t.inside, place{from: p.Orig, to: s.Detour.Begin(p), site: int32(i)})
			}
		}
		for n := 1; t.every && n < len(s.Patch); n++ {
			at := s.Addr + uint64(n)
			t.inside = append(t.inside, place{from: at, to: at, site: int32(i)})
		}
	}
	sortStable(t.inside, byFrom)
}

// findOld lists the patches that go.
func (t *Threads) findOld(remove []*target.Site) {
	t.old = make([]interval.Range, 0, len(remove))
	for _, s := range sorted(remove, addrOf) {
		t.old = append(t.old, interval.Range{Start: s.Addr, End: s.Addr + uint64(len(s.Patch))})
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
		if i := find(t.inside, p.Orig); i >= 0 {
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
	t.leave, t.out = make([]leaving, 0, len(sites)), make([]place, 0, 5*len(sites)) // what most need
	for _, s := range sites {
		t.leave = append(t.leave, leaving{roomOf(s), t.harms(s)})
		n := len(t.out)
		for _, b := range s.Detour.Points {
			t.out = append(t.out, place{from: b.At, to: at.begin(b.Point)})
		}
		for _, p := range s.Detour.Pairs {
			to := at.begin(p.Orig)
			if s.Holds(p.Orig) {
				to = at.copy(p.Orig)
			}
			t.out = append(t.out, place{from: p.Copy, to: to, sp: p.SP})
		}
		sortStable(t.out[n:], byFrom)
	}
}

func byFrom(a, b place) int { return cmp.Compare(a.from, b.from) }

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
