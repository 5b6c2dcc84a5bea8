package process

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/codealloc"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
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
	th         *Thread
	from, regs Regs
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
func (t *Target) look(s *Stopped, c *target.Change) (*look, error) {
	c.Begin()
	if tid, busy := t.faults.busy(s); busy {
		return nil, errno.Errorf(unix.EBUSY, "thread %d is in the handler of a fault: %w", tid, ErrBlocked)
	}
	if err := c.LeaveOut(t.lookTraps(s, c.Open().Add)); err != nil {
		return nil, err
	}
	if err := c.LeaveOut(t.lookRoom(s, c.Open().Add)); err != nil {
		return nil, err
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
func (t *Target) lookTraps(s *Stopped, add []*target.Site) target.Blocks {
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
	for _, z := range slices.Concat(open.Remove, t.zombie) {
		for _, p := range z.Detour.Pairs {
			if in, ok := w.inner[p.Orig]; ok && p.Copy == z.Detour.Back {
				w.harmed[z] = append(w.harmed[z], in.site)
			}
		}
	}
	for _, z := range t.zombie {
		if len(w.harmed[z]) > 0 {
			w.leave = append(w.leave, z)
		}
	}
	byDetour(w.leave)
	w.back, w.low = backOf(w.leave), ^uint64(0)
	for h := range w.harmed {
		w.low, w.high = min(w.low, h.Detour.Addr), max(w.high, h.Detour.Addr+uint64(h.Room))
	}
	return w
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
	return slices.ContainsFunc(a.Detour.Pairs, func(p arch.Pair) bool { return p.Copy == a.Detour.Back && w.insideOld(p.Orig) })
}

// lookThreads finds the threads that are to be moved, and those that are in the way.
func (t *Target) lookThreads(s *Stopped, w *ways) *look {
	l := &look{apart: slices.ContainsFunc(w.add, w.returnsInside)}
	for _, th := range s.parked {
		w.lookParked(th)
	}
	for _, th := range s.Threads() {
		pc := th.ResumeRIP()
		if regs, ok := t.faults.taking(th); ok {
			l.moves = append(l.moves, threadMove{th, th.Regs(), regs})
			continue
		}
		if trapped, err := t.faults.trapped(th); trapped || err != nil {
			continue // it goes on where the table says; or has ended
		}
		if t.inGate(pc) {
			to := t.gateGoesTo(pc, th.regs.R13, th.regs.RSP)
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
				r.Flags &^= trapFlag
			}
			l.moves = append(l.moves, threadMove{th, th.Regs(), r})
			l.apart = l.apart || w.insideOld(to)
		}
	}
	return l
}

// lookParked blocks what a thread is in the way of that cannot be moved.
func (w *ways) lookParked(th *Thread) {
	pc := th.ResumeRIP()
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
func (t *Target) lookStacks(s *Stopped, w *ways) error {
	if w.onStack == nil {
		all := []*ways{w}
		for _, p := range t.plans {
			if p.ways != nil && p.ways.byStack() {
				all = append(all, p.ways)
			}
		}
		for _, w := range all {
			w.onStack = target.Blocks{}
		}
		err := t.scanStacks(s, func(tid int, at, v uint64) error {
			for _, w := range all {
				w.lookWord(tid, at, v)
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
func (t *Target) reclaim(s *Stopped) {
	if len(t.zombie) == 0 {
		return
	}
	zombies := slices.Clone(t.zombie)
	byDetour(zombies)
	busy := map[*target.Site]bool{}
	mark := func(v uint64) {
		i := sort.Search(len(zombies), func(i int) bool { return zombies[i].Detour.Addr > v }) - 1
		if i >= 0 && v-zombies[i].Detour.Addr < uint64(zombies[i].Room) {
			busy[zombies[i]] = true
		}
	}
	for _, th := range s.everyone() {
		for _, pc := range t.resumes(th) {
			mark(pc)
		}
	}
	err := t.savedContexts(s, t.golang != nil, mark)
	left := zombies[:0]
	var free []codealloc.Span
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

// Bounds of what is read of one stack. A stack in a mapping larger than maxStack is not
// a thread's own (a goroutine's, a fiber's): its owner must say where it ends.
const (
	maxStack  = 64 << 20
	stackView = 256 << 10
)

// scanStacks gives every aligned word of the threads' stacks, from a red zone below the
// stack pointer to the end, and of the goroutines' stacks in a Go program.
func (t *Target) scanStacks(s *Stopped, f func(tid int, at, v uint64) error) error {
	for _, th := range s.everyone() {
		lo, hi, err := s.liveStack(th, t.golang != nil)
		if err != nil {
			return err
		}
		if err := t.scanWords(lo, hi, func(at, v uint64) error { return f(th.TID, at, v) }); err != nil {
			return err
		}
	}
	if t.golang == nil {
		return nil
	}
	return t.golang.stacks(s, func(lo, hi uint64) error {
		return t.scanWords(lo, hi, func(at, v uint64) error { return f(0, at, v) })
	})
}

// savedContexts gives the addresses in our mappings that signal frames on the threads'
// stacks return to: saved instruction pointers, and return addresses into what ends a
// handler. Those are all the ways back into a detour: calls in one push the original's
// return address. Other words are what earlier frames have left, and would keep a detour
// for as long as a thread sleeps above them. A context in the gate has the way back in a
// register.
func (t *Target) savedContexts(s *Stopped, goProgram bool, f func(v uint64)) error {
	return t.contexts(s, goProgram, func(_ *Thread, _, v uint64) { f(v) })
}

// contexts is savedContexts with the thread and the place of each word.
func (t *Target) contexts(s *Stopped, goProgram bool, f func(th *Thread, at, v uint64)) error {
	maps, err := s.FileMaps()
	if err != nil {
		return err
	}
	maps = slices.DeleteFunc(slices.Clone(maps), func(m procfs.Map) bool { return !ours(m) })
	if len(maps) == 0 {
		return nil
	}
	for _, th := range s.everyone() {
		lo, hi, err := s.liveStack(th, goProgram)
		if err != nil {
			return err
		}
		err = t.scanWords(lo, hi, func(at, v uint64) error {
			if _, ok := procfs.FindMap(maps, v); !ok || !t.inFrame(at) {
				return nil
			}
			f(th, at, v)
			var b [scCS]byte
			if t.inGate(v) && t.p.ReadMem(at-scRIP, b[:]) == nil {
				f(th, at, t.gateGoesTo(v, le.Uint64(b[scR13:]), le.Uint64(b[scRSP:])))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// inFrame says whether the word at at is a signal frame's saved instruction pointer or its
// return address: the saved code segment tells.
func (t *Target) inFrame(at uint64) bool {
	for _, cs := range []uint64{at + scCS - scRIP, at + 8 + scOffset + scCS} {
		var b [2]byte
		if t.p.ReadMem(cs, b[:]) == nil && le.Uint16(b[:]) == userCS {
			return true
		}
	}
	return false
}

// Offsets in struct sigcontext (asm/sigcontext.h).
const (
	scR13 = 40
	scRIP = 128
	scCS  = 144
)

// liveStack is the used part of a thread's stack. In a Go program that is an alternate
// stack that a handler runs on, or nothing: addresses of detours stand nowhere else that
// counts (all handlers run there, and goroutines are not preempted in code that the runtime
// does not know), and most other stacks lie in the heap, among dead ones.
func (s *Stopped) liveStack(th *Thread, goProgram bool) (lo, hi uint64, err error) {
	m, ok, err := s.mapAt(th.regs.RSP)
	if !ok || err != nil {
		return 0, 0, err
	}
	lo, hi = stackIn(m, th.regs.RSP)
	if !goProgram {
		return lo, hi, nil
	}
	alt, on := s.altStack(m, th.regs.RSP)
	if !on {
		return 0, 0, nil
	}
	return lo, min(hi, alt.Hi), nil
}

// stackIn is the used part of the stack that sp is in, and that lies in m.
func stackIn(m procfs.Map, sp uint64) (lo, hi uint64) {
	lo, hi = max(sp-128, m.Start)&^7, m.End
	if m.Size() > maxStack {
		hi = min(hi, sp+stackView)
	}
	return lo, hi
}

// scanBuffers are those of scanWords, which is called for each of thousands of threads.
var scanBuffers sync.Pool

// scanWords gives the words from lo to hi to f, or those up to the first page that can not be read:
// guard pages between stacks may be part of one mapping with them (MADV_GUARD_INSTALL, Linux 6.13;
// the C library from 2.42 on).
func (t *Target) scanWords(lo, hi uint64, f func(at, v uint64) error) error {
	buf, _ := scanBuffers.Get().(*[64 << 10]byte)
	if buf == nil {
		buf = new([64 << 10]byte)
	}
	defer scanBuffers.Put(buf)
	for lo < hi {
		b := buf[:min(uint64(len(buf)), hi-lo)]
		n, err := t.p.ReadMemSome(lo, b)
		if err != nil && !errors.Is(err, ErrFault) {
			return err
		}
		for i := 0; i+8 <= n; i += 8 {
			if err := f(lo+uint64(i), binary.LittleEndian.Uint64(b[i:])); err != nil {
				return err
			}
		}
		if n < len(b) {
			return nil
		}
		lo += uint64(n)
	}
	return nil
}
