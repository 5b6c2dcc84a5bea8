package self

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/codealloc"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Bounds of the attempts at a change that a thread blocks.
const (
	commitTries = 60
	commitWait  = 2 * time.Millisecond
	lateTries   = 5 // in which a thread did not stop: all others stand meanwhile

	// unsureTries are those at a change of groups that a thread blocks which may come back to
	// anywhere, as most do not for long.
	unsureTries = 10
)

// Commit makes a change in one stop of the other threads. No fork of the process is in
// progress then: a child that shares its memory would run code that changes.
//
// Then is called when the threads run again: it is not bound to what a stopped world allows.
func (t *Target) Commit(c *target.Change) error {
	if err := t.commit(c); err != nil || c.Then == nil {
		return err
	}
	return c.Then()
}

func (t *Target) commit(c *target.Change) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.control.refit(hooked...); err != nil {
		return err
	}
	// With a debugger attached no new place is armed; what takes something out may replace.
	c.Begin()
	all := c.Open()
	gone := inOrder(all.Remove)
	if slices.ContainsFunc(all.Add, func(s *target.Site) bool { return !gone.overlap(s) }) {
		if err := untraced(); err != nil {
			return err
		}
	}
	return t.change(c)
}

// batch is the number of sites from which on two processors prepare a change.
const batch = 64

// both calls two functions, at the same time if there is much to do.
func both(n int, f, g func()) {
	if n < batch {
		f()
		g()
		return
	}
	var wg sync.WaitGroup
	wg.Go(g)
	f()
	wg.Wait()
}

func byDetour(a, b *target.Site) int { return cmp.Compare(a.Detour.Addr, b.Detour.Addr) }

// writeDetours writes the code of new sites, that of neighbours at once: what lies between is
// room that belongs to the first of them.
func (t *Target) writeDetours(add []*target.Site) error {
	sites := slices.SortedFunc(slices.Values(add), byDetour)
	var run []byte
	for i, s := range sites {
		run = append(run, s.Detour.Code...)
		end := s.Detour.Addr + uint64(s.Room)
		if i+1 < len(sites) && sites[i+1].Detour.Addr == end && len(run) < maxWrite {
			run = append(run, make([]byte, s.Room-len(s.Detour.Code))...)
			continue
		}
		at := s.Detour.Addr + uint64(len(s.Detour.Code)) - uint64(len(run))
		if _, err := t.mem.WriteAt(run, int64(at)); err != nil {
			return fmt.Errorf("detours from 0x%x to 0x%x: %w", at, end, err)
		}
		run = run[:0]
	}
	return nil
}

// maxWrite is about the most that is written at once, in bytes.
const maxWrite = 64 << 10

// change makes a change, again and again while a thread blocks it. A group that one blocks is
// left out of the next stop.
func (t *Target) change(c *target.Change) error {
	written := false
	for {
		open := c.Open()
		var p *plan
		var fresh *heads
		var errs [2]error
		both(len(open.Add), func() {
			if !written {
				errs[0] = t.writeDetours(open.Add)
				written = true
			}
			p = t.newPlan(open)
		}, func() { fresh, errs[1] = t.newHeads(open) })
		if err := errors.Join(errs[:]...); err != nil {
			return errors.Join(err, fresh.drop())
		}
		if len(c.Groups) > 0 {
			p.blocks = func() target.Blocks {
				b := p.blocked(open, t.zombie)
				if slices.ContainsFunc(c.Add, func(s *target.Site) bool { return b[s] != nil }) {
					return nil
				}
				return b
			}
		}
		err := t.changeAll(open, p, fresh)
		if !errors.Is(err, ErrBlocked) || p.blocks == nil {
			return err
		}
		b := p.blocks()
		if len(b) == 0 {
			return err
		}
		_ = c.LeaveOut(b) // of what belongs to no group nothing is in b
	}
}

// changeAll makes a planned change as a whole.
func (t *Target) changeAll(c *target.Change, p *plan, fresh *heads) error {
	p.heads = fresh.words
	if err := t.attempt(p); err != nil {
		return errors.Join(err, fresh.drop())
	}
	old := t.control.heads
	t.control.heads, t.dead = fresh, nil
	t.live += len(c.Add)
	t.retired(p, t.gone(p, c.Remove))
	return old.replaced(fresh)
}

// blocked tells which new sites the thread is in the way of that the plan has met: those whose
// inner bytes it may come back to, by itself or by the way out of a detour that goes.
func (p *plan) blocked(c *target.Change, zombies []*target.Site) target.Blocks {
	b := target.Blocks{}
	why := &target.BusyError{TID: int(p.tid), Addr: p.at, Why: "it may go on in bytes or in a detour that change"}
	block := func(at uint64) {
		for _, s := range c.Add {
			if s.Inside(at) {
				b.Block(s, why)
			}
		}
	}
	if p.handler {
		why.Why = "it runs a signal handler, and may come back to anywhere"
		for _, s := range c.Add {
			if len(s.Patch) > 1 {
				b.Block(s, why)
			}
		}
	}
	block(p.at)
	for _, z := range slices.Concat(c.Remove, zombies) {
		if !p.gate && !detourOf(z).holds(p.at) {
			continue
		}
		for _, pr := range z.Detour.Pairs {
			if pr.Copy == z.Detour.Back {
				block(pr.Orig)
			}
		}
	}
	return b
}

// attempt makes a planned change, again and again while a thread blocks it that does not block
// groups only.
func (t *Target) attempt(p *plan) error {
	var err error
	late := 0
	for i := range commitTries {
		if i > 0 {
			time.Sleep(commitWait * time.Duration(i))
		}
		if err = t.control.refit(unix.SIGURG); err != nil {
			break
		}
		if err = t.stopped(p); p.once || !errors.Is(err, ErrBlocked) {
			break
		}
		if p.late {
			late++
		}
		unsure := p.handler || p.gate
		if late == lateTries || !p.late && p.blocks != nil && (!unsure || i >= unsureTries) && len(p.blocks()) > 0 {
			break
		}
	}
	return err
}

// stopped makes a planned change in a stop.
func (t *Target) stopped(p *plan) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	world.tid = int32(unix.Gettid())
	var old uint64
	all := ^uint64(0)
	setMask(&all, &old)
	tid := onSystem(p)
	p.late = tid > 0
	setMask(&old, nil)
	switch {
	case tid < 0:
		return errno.Errorf(unix.EBUSY, "the own threads can not be listed")
	case tid > 0:
		return errno.Errorf(unix.EBUSY, "thread %d did not stop in %d ms%s: %w", tid, int(stopDeadline/1e6), waitsIn(tid), ErrBlocked)
	}
	switch p.verdict {
	case blockedBy:
		return &target.BusyError{TID: int(p.tid), Addr: p.at, Why: "it stands, or may go on, in bytes or in a detour that change"}
	case foreignBytes:
		return errno.Errorf(unix.EBUSY, "0x%x: %w", p.at, ErrForeign)
	case writeFailed:
		return fmt.Errorf("code at 0x%x can not be written: %w", p.at, p.errno)
	}
	return nil
}

// setMask sets the thread's signal mask. Package signalpath knows it by its name.
//
//go:noinline
//go:norace
//go:nosplit
func setMask(set, old *uint64) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
}

// newPlan prepares a change.
func (t *Target) newPlan(c *target.Change) *plan {
	p := &plan{
		adding: len(c.Add) > 0, once: c.Once, home: t.control.words(), mem: int(t.mem.Fd()), lay: t.lay, places: &t.places,
		zombies: make([]zombie, len(t.zombie)),
	}
	p.ways(c, t.zombie)
	for i, s := range t.zombie {
		p.zombies[i].span = detourOf(s)
	}
	p.bound()
	p.edits = editsOf(c)
	return p
}

// ways tells where threads go on that are in bytes or detours which a change takes away.
func (p *plan) ways(c *target.Change, zombies []*target.Site) {
	p.inner = make([]move, 0, 2*len(c.Add)) // what most need
	for _, s := range c.Add {
		for _, pr := range s.Detour.Pairs {
			if s.Inside(pr.Orig) {
				p.inner = append(p.inner, move{from: pr.Orig, to: s.Detour.Begin(pr)})
			}
		}
	}
	byFrom := func(a, b move) int { return cmp.Compare(a.from, b.from) }
	if !slices.IsSortedFunc(p.inner, byFrom) {
		slices.SortStableFunc(p.inner, byFrom)
	}
	var leaving []*target.Site
	for _, s := range slices.Concat(c.Remove, zombies) {
		if p.insideNew(s) { // else a thread in the detour may finish there
			leaving = append(leaving, s)
		}
	}
	if len(leaving) > 0 {
		at := landingsOf(c.Add)
		for _, s := range leaving {
			p.leave(s, at)
		}
	}
	slices.SortStableFunc(p.back, byFrom)
	slices.SortFunc(p.gone, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
}

// leave has threads leave a detour that must not be left by its own way back.
func (p *plan) leave(s *target.Site, at landings) {
	p.gone = append(p.gone, detourOf(s))
	for _, pr := range s.Detour.Pairs {
		to := at.begin(pr.Orig)
		if s.Holds(pr.Orig) { // else it is not the region's, nor its work
			to = at.copy(pr.Orig)
		}
		p.back = append(p.back, move{from: pr.Copy, to: to, sp: pr.SP})
	}
	for _, b := range s.Detour.Points {
		p.back = append(p.back, move{from: b.At, to: at.begin(b.Point)})
	}
}

// insideNew says whether what comes behind a site's region is inside a new patch: then a
// thread must not come back from the site's detour. inner is sorted.
func (p *plan) insideNew(s *target.Site) bool {
	for _, pr := range s.Detour.Pairs {
		if pr.Copy == s.Detour.Back {
			return find(p.inner, pr.Orig) >= 0
		}
	}
	return false
}

// landing is where a thread goes on that comes from another detour of the instruction: where
// its work begins, or, if that has been done there, at its copy.
type landing struct{ begin, copy uint64 }

// landings are those of the regions of new sites, by the instruction. A thread that runs a
// region's instruction in the program's own code, behind the patch, would pass its work. What is
// behind a region, or what it calls, is none: its work may have been done, or is to be done.
type landings map[uint64]landing

func landingsOf(add []*target.Site) landings {
	m := landings{}
	for _, s := range add {
		for _, pr := range s.Detour.Pairs {
			if _, ok := m[pr.Orig]; !ok && s.Holds(pr.Orig) {
				m[pr.Orig] = landing{s.Detour.Begin(pr), pr.Copy}
			}
		}
	}
	return m
}

func (m landings) begin(orig uint64) uint64 {
	if l, ok := m[orig]; ok {
		return l.begin
	}
	return orig
}

func (m landings) copy(orig uint64) uint64 {
	if l, ok := m[orig]; ok {
		return l.copy
	}
	return orig
}

// bound sets the ranges that nothing to look for lies outside of.
func (p *plan) bound() {
	p.low, p.high = span{lo: ^uint64(0)}, span{lo: ^uint64(0)}
	for _, m := range p.inner {
		p.low.add(span{m.from, m.from + 1})
	}
	for _, g := range p.gone {
		p.high.add(g)
	}
	for _, z := range p.zombies {
		p.high.add(z.span)
	}
}

func (s *span) add(o span) {
	s.lo, s.hi = min(s.lo, o.lo), max(s.hi, o.hi)
}

func detourOf(s *target.Site) span {
	return span{s.Detour.Addr, s.Detour.Addr + uint64(len(s.Detour.Code))}
}

// editsOf lists the edits of a change: removals first, in the order in which they are
// written. One that is replaced by another of the same length is not written twice.
func editsOf(c *target.Change) []edit {
	out := make([]edit, 0, len(c.Remove)+len(c.Add))
	gone, come := inOrder(c.Remove), inOrder(c.Add)
	for _, s := range gone {
		if n := come.at(s.Addr); n != nil && len(n.Patch) == len(s.Patch) {
			continue
		}
		e := newEdit(s, s.Patch, s.Orig)
		e.check, e.leave = true, !come.overlap(s)
		out = append(out, e)
	}
	for _, s := range c.Add {
		e := newEdit(s, s.Orig, s.Patch)
		if r := gone.at(s.Addr); r != nil && len(r.Patch) == len(s.Patch) {
			e = newEdit(s, r.Patch, s.Patch)
			e.check = true
		} else {
			e.check = !gone.overlap(s)
		}
		out = append(out, e)
	}
	return out
}

func newEdit(s *target.Site, old, now []byte) edit {
	e := edit{addr: s.Addr, n: len(now)}
	copy(e.orig[:], s.Orig[:min(len(s.Orig), len(now))])
	copy(e.old[:], old[:min(len(old), len(now))])
	copy(e.new[:], now)
	return e
}

// ordered are sites sorted by address, whose patches do not overlap.
type ordered []*target.Site

// inOrder sorts sites. Of several at one place, all but one of which were left to somebody else's
// bytes, the last is taken.
func inOrder(sites []*target.Site) ordered {
	rises := true
	for i := 1; i < len(sites) && rises; i++ {
		rises = sites[i-1].Addr < sites[i].Addr
	}
	if rises {
		return sites
	}
	last := map[uint64]*target.Site{}
	for _, s := range sites {
		last[s.Addr] = s
	}
	return slices.SortedFunc(maps.Values(last), func(a, b *target.Site) int { return cmp.Compare(a.Addr, b.Addr) })
}

// find gives the number of the first site at or behind an address.
func (o ordered) find(addr uint64) int {
	i, _ := slices.BinarySearchFunc(o, addr, func(s *target.Site, a uint64) int { return cmp.Compare(s.Addr, a) })
	return i
}

// at gives the site at an address; nil: there is none.
func (o ordered) at(addr uint64) *target.Site {
	if i := o.find(addr); i < len(o) && o[i].Addr == addr {
		return o[i]
	}
	return nil
}

// overlap says whether a site's bytes are those of one of the sites too.
func (o ordered) overlap(s *target.Site) bool {
	i := o.find(s.Addr)
	return i < len(o) && o[i].Addr < s.Addr+uint64(len(s.Patch)) ||
		i > 0 && s.Addr < o[i-1].Addr+uint64(len(o[i-1].Patch))
}

// gone are the removed sites whose patches have been taken out. The others hold somebody else's
// bytes, and their detours stay.
func (t *Target) gone(p *plan, removed []*target.Site) []*target.Site {
	left := map[uint64]bool{}
	for i := range p.edits {
		if e := &p.edits[i]; e.foreign {
			left[e.addr] = true
		}
	}
	if len(left) == 0 {
		return removed
	}
	var out []*target.Site
	for _, s := range removed {
		if left[s.Addr] {
			t.foreign = append(t.foreign, s)
			continue
		}
		out = append(out, s)
	}
	return out
}

// retired takes the removed sites into the zombies and gives back the room of those in which
// no thread was.
func (t *Target) retired(p *plan, removed []*target.Site) {
	var left, dead []*target.Site
	var free []codealloc.Span
	for i, s := range t.zombie {
		if p.dirty || p.zombies[i].busy {
			left = append(left, s)
			continue
		}
		dead = append(dead, s)
		free = append(free, codealloc.Span{Addr: s.Detour.Addr, Size: s.Room})
	}
	t.dead = append(t.dead, dead...)
	t.live -= len(dead)
	t.codeMu.Lock()
	t.freeCode(free...)
	t.codeMu.Unlock()
	t.zombie = append(left, removed...)
}

// Forget drops sites whose code was unmapped: nothing is left to restore.
func (t *Target) Forget(sites []*target.Site) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.zombie = append(t.zombie, sites...)
	return nil
}

// reclaim gives back the detours of removed sites that no thread is in or can return to,
// and says whether all were.
func (t *Target) reclaim() (all bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.zombie) == 0 {
		return true, nil
	}
	if err := t.change(&target.Change{}); err != nil {
		return false, err
	}
	return len(t.zombie) == 0, nil
}

// Idle says whether no thread is in the code of a site that was removed.
func (t *Target) Idle() bool {
	all, err := t.reclaim()
	return all && err == nil
}

// drainWait is the longest pause between two looks for threads in removed detours.
const drainWait = 50 * time.Millisecond

// drain waits until all detours of removed sites are given back.
func (t *Target) drain() error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, drainWait) {
		if all, err := t.reclaim(); all || err != nil && !errors.Is(err, ErrBlocked) {
			return err
		}
		time.Sleep(wait)
	}
}

// waitsIn tells where a thread waits in the kernel, as far as it can be had.
func waitsIn(tid int32) string {
	b, err := readTask(tid, "wchan")
	if err != nil || len(b) == 0 || bytes.Equal(b, []byte("0")) {
		return ""
	}
	return fmt.Sprintf(" (it waits in the kernel's %s)", b)
}
