package process

import (
	"cmp"
	"slices"
	"sort"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
)

// ways are what a change means for a thread, by where it is.
type ways struct {
	inner          map[uint64]inside
	first, last    uint64 // of inner
	begins, copies map[uint64]uint64
	back           map[uint64]arch.Pair
	leave          []*target.Site // whose detours threads are moved out of, in the order of byDetour
	// harmed are those whose detours go back into the middle of new patches, with the new
	// sites: a thread must not be in the middle of one. In any other it may finish. They lie
	// in [low, high).
	harmed    map[*target.Site][]*target.Site
	low, high uint64
	blocks    target.Blocks
	// onStack: the stacks have been searched, and this is blocked by what stands there.
	onStack target.Blocks

	add     []*target.Site
	patches map[uint64]*target.Site // those that are taken out, by address
}

// plannedWays is waysOf; where nothing has changed since the plan was made it is the plan's.
func (t *Target) plannedWays(c *target.Change) *ways {
	p := t.plans[c]
	if p == nil || !slices.Equal(p.zombie, t.zombie) || c.Blocked() {
		return t.waysOf(c)
	}
	w := p.ways
	p.ways = nil // threads mark what they block there
	if w == nil {
		w = t.waysOf(c)
	}
	return w
}

// byStack says whether the stacks are to be searched.
func (w *ways) byStack() bool { return len(w.inner) > 0 || len(w.harmed) > 0 }

// inside is an instruction of a new site that must not be run where it stands.
type inside struct {
	to   uint64 // where a thread goes that is to run it
	site *target.Site
}

// waysOf finds them for the groups of a change that are not blocked.
func (t *Target) waysOf(c *target.Change) *ways {
	open := c.Open()
	w := &ways{inner: innerOf(open.Add), harmed: map[*target.Site][]*target.Site{}, blocks: target.Blocks{}, add: open.Add, patches: map[uint64]*target.Site{}}
	for _, r := range open.Remove {
		w.patches[r.Addr] = r
	}
	w.first = ^uint64(0)
	for at := range w.inner {
		w.first, w.last = min(w.first, at), max(w.last, at)
	}
	w.begins, w.copies = landings(open.Add)
	w.leave = slices.Clone(open.Remove)
	if len(w.inner) > 0 {
		w.findHarmed(open.Remove, t.zombie)
	}
	byDetour(w.leave)
	w.back, w.low = backOf(w.leave), ^uint64(0)
	for h := range w.harmed {
		w.low, w.high = min(w.low, h.Detour.Addr), max(w.high, h.Detour.Addr+uint64(h.Room))
	}
	return w
}

// findHarmed finds those of the sites that go, and of those that have gone, whose detours go back into new patches.
func (w *ways) findHarmed(remove, gone []*target.Site) {
	for _, z := range slices.Concat(remove, gone) {
		for _, p := range z.Detour.Pairs {
			if in, ok := w.inner[p.Orig]; ok && p.Copy == z.Detour.Back {
				w.harmed[z] = append(w.harmed[z], in.site)
			}
		}
	}
	for _, z := range gone {
		if len(w.harmed[z]) > 0 {
			w.leave = append(w.leave, z)
		}
	}
}

// block notes that a thread is in, or may come back to, the detour of a site.
func (w *ways) block(s *target.Site, why error) {
	for _, h := range w.harmed[s] {
		w.blocks.Block(h, why)
	}
}

// insideOld says whether an address is inside an old patch.
func (w *ways) insideOld(a uint64) bool {
	for n := uint64(1); n < native.PatchLen; n++ {
		if r := w.patches[a-n]; r != nil && n < uint64(len(r.Patch)) {
			return true
		}
	}
	return false
}

// returnsInside says whether the detour of a new site goes back to inside an old patch.
func (w *ways) returnsInside(a *target.Site) bool {
	return len(w.patches) > 0 && slices.ContainsFunc(a.Detour.Pairs, func(p arch.Pair) bool { return p.Copy == a.Detour.Back && w.insideOld(p.Orig) })
}

// around extends [lo, hi), if it is not empty, by what lookWord looks for.
func (w *ways) around(lo, hi uint64) (uint64, uint64) {
	for _, r := range []procfs.Range{{Lo: w.first, Hi: w.last + 1}, {Lo: w.low, Hi: w.high}} {
		switch {
		case r.Lo >= r.Hi:
		case lo == hi:
			lo, hi = r.Lo, r.Hi
		default:
			lo, hi = min(lo, r.Lo), max(hi, r.Hi)
		}
	}
	return lo, hi
}

// innerOf maps the instructions of new sites that must not be run where they stand
// (target.Site.Inside) to their copies.
func innerOf(add []*target.Site) map[uint64]inside {
	m := map[uint64]inside{}
	for _, a := range add {
		for _, p := range a.Detour.Pairs {
			if a.Inside(p.Orig) {
				if _, ok := m[p.Orig]; !ok {
					m[p.Orig] = inside{a.Detour.Begin(p), a}
				}
			}
		}
	}
	return m
}

// landings maps the instructions of new sites' regions to where their work begins, and to
// their copies: a thread that ran one in the program's own code, behind the patch, would pass
// its work. What is behind a region, or what it calls, is none: its work may have been done, or is
// to be done.
func landings(add []*target.Site) (begins, copies map[uint64]uint64) {
	begins, copies = map[uint64]uint64{}, map[uint64]uint64{}
	for _, a := range add {
		for _, p := range a.Detour.Pairs {
			if _, ok := copies[p.Orig]; !ok && a.Holds(p.Orig) {
				begins[p.Orig], copies[p.Orig] = a.Detour.Begin(p), p.Copy
			}
		}
	}
	return begins, copies
}

// backOf maps addresses in the detours of sites that go to the original instructions:
// only those at which that is exact.
func backOf(remove []*target.Site) map[uint64]arch.Pair {
	m := map[uint64]arch.Pair{}
	for _, r := range remove {
		for _, p := range r.Detour.Pairs {
			m[p.Copy] = p
		}
		for _, b := range r.Detour.Points {
			m[b.At] = arch.Pair{Orig: b.Point, Copy: b.At}
		}
	}
	return m
}

// byDetour puts sites in the order of their detours, which do not overlap.
func byDetour(sites []*target.Site) {
	slices.SortFunc(sites, func(a, b *target.Site) int { return cmp.Compare(a.Detour.Addr, b.Detour.Addr) })
}

// siteAround gives the site in whose detour pc is. Sites are in the order of byDetour: there may be
// thousands, for thousands of threads.
func siteAround(sites []*target.Site, pc uint64) *target.Site {
	i := sort.Search(len(sites), func(i int) bool { return sites[i].Detour.Addr > pc }) - 1
	if i >= 0 && pc-sites[i].Detour.Addr < uint64(sites[i].Room) {
		return sites[i]
	}
	return nil
}
