package process

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/codealloc"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// look is what the stopped threads mean for a change.
type look struct {
	moves []threadMove
	// apart: a thread is to go on, or may by the signal of a breakpoint that it has run, where it
	// would come to inside an old patch. It is sent there between the two writes, while the
	// program's own bytes stand.
	apart bool
}

type threadMove struct {
	th         *ptrace.Thread
	from, regs ptrace.Regs
}

// move sets the instruction pointers of the threads that stand in bytes that change, or in detours
// that go: a tracer killed right after it leaves each where it can go on.
func (l *look) move() error {
	for _, m := range l.moves {
		if err := m.th.SetRegs(m.regs); err != nil {
			return err
		}
	}
	return nil
}

// back takes back the moves of a change that could not be made.
func (l *look) back() error {
	var errs []error
	for _, m := range l.moves {
		errs = append(errs, m.th.SetRegs(m.from))
	}
	return errors.Join(errs...)
}

// look finds out where every thread stands. Groups in whose way one stands, or may come back,
// are marked as blocked; it fails with ErrBlocked if that is the rest of the change. Precondition:
// the world is stopped.
func (t *Target) look(s *ptrace.Stopped, c *target.Change) (*look, error) {
	c.Begin()
	if tid, busy := t.faults.busy(s); busy {
		return nil, errno.Errorf(unix.EBUSY, "thread %d is in the handler of a fault: %w", tid, ErrBlocked)
	}
	add := c.Open().Add
	for _, b := range []target.Blocks{t.lookTraps(s, add), t.lookRoom(s, add)} {
		if err := c.LeaveOut(b); err != nil {
			return nil, err
		}
	}
	for w := t.plannedWays(c); ; w = t.waysOf(c) {
		l := t.lookThreads(s, w)
		if len(w.blocks) == 0 && w.byStack() {
			if err := t.lookStacks(s, w); err != nil {
				return nil, err
			}
		}
		if len(w.blocks) == 0 {
			return l, nil
		}
		if err := c.LeaveOut(w.blocks); err != nil {
			return nil, err
		}
	}
}

// lookTraps finds out whether breakpoints may stand now.
func (t *Target) lookTraps(s *ptrace.Stopped, add []*target.Site) target.Blocks {
	b := target.Blocks{}
	if !slices.ContainsFunc(add, func(a *target.Site) bool { return a.Trap }) {
		return b
	}
	if why := t.faults.allowTraps(s); why != nil {
		for _, a := range add {
			if a.Trap {
				b.Block(a, why)
			}
		}
	}
	return b
}

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
	for n := uint64(1); n < amd64.JumpLen; n++ {
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

// lookThreads finds the threads that are to be moved, and those that are in the way.
func (t *Target) lookThreads(s *ptrace.Stopped, w *ways) *look {
	l := &look{apart: slices.ContainsFunc(w.add, w.returnsInside)}
	for _, th := range s.Parked() {
		w.lookParked(th)
	}
	for _, th := range s.Threads() {
		pc := th.ResumePC()
		if regs, ok := t.faults.taking(th); ok {
			l.moves = append(l.moves, threadMove{th, th.Regs(), regs})
			continue
		}
		if trapped, err := t.faults.trapped(th); trapped || err != nil {
			continue // it goes on where the table says; or has ended
		}
		if t.inGate(pc) {
			to := t.gateGoesTo(pc, th.Regs().R13, th.Regs().RSP)
			w.block(siteAround(w.leave, to), blocked(th.TID, to, "it waits for the handler of a probe, and goes back into bytes that change"))
		}
		to, sp, way := pc, uint64(0), map[uint64]uint64(nil)
		if site := siteAround(w.leave, pc); site != nil {
			b, ok := w.back[pc]
			if !ok {
				w.block(site, blocked(th.TID, pc, "it runs the work of a probe, and goes back into bytes that change"))
			} else {
				to, sp, way = b.Orig, b.SP, w.begins
				if b.CopyEnd != 0 && site.Holds(b.Orig) { // the instruction's copy: its work is done, and not to be done again
					way = w.copies
				}
			}
		}
		if there, ok := way[to]; ok {
			to = there
		} else if in, ok := w.inner[to]; ok && way == nil {
			if t.faults.trapComes(th) {
				w.blocks.Block(in.site, blocked(th.TID, pc, "it has a SIGTRAP to take, perhaps of a breakpoint that stood before it"))
				continue
			}
			to = in.to
		}
		if to != pc {
			r := th.Regs()
			r.RIP += to - pc
			r.RSP += sp
			if way != nil && t.faults.traps { // out of a detour, in which it was about to step the copy
				r.Flags &^= ptrace.TrapFlag
			}
			l.moves = append(l.moves, threadMove{th, th.Regs(), r})
			l.apart = l.apart || w.insideOld(to)
		}
	}
	return l
}

// lookParked blocks what a thread is in the way of that cannot be moved.
func (w *ways) lookParked(th *ptrace.Thread) {
	pc := th.ResumePC()
	const why = "it waits for its vfork child, and can not be moved"
	if in, ok := w.inner[pc]; ok {
		w.blocks.Block(in.site, blocked(th.TID, pc, why))
	}
	if site := siteAround(w.leave, pc); site != nil {
		w.block(site, blocked(th.TID, pc, why))
	}
}

// lookStacks finds the threads that may come back to where they would be in the way. The stacks are searched once for
// all changes of a stop: nothing of the program runs in between, and no change writes to them.
func (t *Target) lookStacks(s *ptrace.Stopped, w *ways) error {
	if w.onStack == nil {
		all := []*ways{w}
		for _, p := range t.plans {
			if p.ways != nil && p.ways.byStack() {
				all = append(all, p.ways)
			}
		}
		var lo, hi uint64 // what is looked for lies between
		for _, w := range all {
			w.onStack = target.Blocks{}
			lo, hi = w.around(lo, hi)
		}
		err := t.scanStacks(s, func(tid int, at uint64, b []byte) error {
			for i := 0; i+8 <= len(b); i += 8 {
				if v := le.Uint64(b[i:]); v-lo < hi-lo {
					for _, w := range all {
						w.lookWord(tid, at+uint64(i), v)
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for site, why := range w.onStack {
		w.blocks.Block(site, why)
	}
	return nil
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

// lookWord looks at a word of a stack.
func (w *ways) lookWord(tid int, at, v uint64) {
	if v >= w.first && v <= w.last {
		if in, ok := w.inner[v]; ok {
			w.onStack.Block(in.site, blocked(tid, v, fmt.Sprintf("its stack at 0x%x may hold a context that returns there", at)))
		}
	}
	if v < w.low || v >= w.high {
		return
	}
	if z := siteAround(w.leave, v); z != nil {
		for _, h := range w.harmed[z] {
			w.onStack.Block(h, blocked(tid, v, fmt.Sprintf("its stack at 0x%x may hold a context that returns into a detour", at)))
		}
	}
}

func blocked(tid int, pc uint64, why string) error {
	return &target.BusyError{TID: tid, Addr: pc, Why: why}
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

// reclaim frees the detours of removed sites that no thread is in and no saved context
// may return to. What is left is tried again at the next change. Precondition: the
// world is stopped, and threads have been moved.
func (t *Target) reclaim(s *ptrace.Stopped) {
	if len(t.zombie) == 0 {
		return
	}
	zombies := slices.Clone(t.zombie)
	byDetour(zombies)
	busy := map[*target.Site]bool{} // few
	mark := func(v uint64) {
		i := sort.Search(len(zombies), func(i int) bool { return zombies[i].Detour.Addr > v }) - 1
		if i >= 0 && v-zombies[i].Detour.Addr < uint64(zombies[i].Room) {
			busy[zombies[i]] = true
		}
	}
	for _, th := range s.Everyone() {
		for _, pc := range t.resumes(th) {
			mark(pc)
		}
	}
	err := t.savedContexts(s, t.golang != nil, mark)
	left := zombies[:0]
	free := make([]codealloc.Span, 0, len(zombies))
	for _, z := range zombies {
		if busy[z] || err != nil {
			left = append(left, z)
			continue
		}
		t.faults.drop(z)
		if t.mail != nil {
			t.mail.Reclaim(z)
		}
		free = append(free, codealloc.Span{Addr: z.Detour.Addr, Size: z.Room})
	}
	t.freeCode(free...)
	t.setZombies(left)
}
