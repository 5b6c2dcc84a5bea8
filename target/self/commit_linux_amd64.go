package self

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sort"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/room"
	"kprobes.dev/kprobes/target"
)

// Bounds of the attempts at a change that a thread blocks.
const (
	commitTries = 60
	commitWait  = 2 * time.Millisecond
	lateTries   = 5 // in which a thread did not stop: all others stand meanwhile
)

// ErrBlocked says that a thread stands, or may return to, where a change would harm it.
var ErrBlocked = errors.New("a thread is in the code that would change")

// ErrForeign says that bytes of the program are neither what its file has nor ours.
var ErrForeign = errors.New("the program's code is not what its file has: somebody else patched it")

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
	if err := t.home.refit(hooked...); err != nil {
		return err
	}
	// With a debugger attached no new place is armed; what takes something out may replace.
	if slices.ContainsFunc(c.Add, func(s *target.Site) bool { return !overlaps(c.Remove, s) }) {
		if err := untraced(); err != nil {
			return err
		}
	}
	for _, s := range c.Add {
		if _, err := t.mem.WriteAt(s.Detour.Code, int64(s.Detour.Addr)); err != nil {
			return fmt.Errorf("detour at 0x%x: %w", s.Detour.Addr, err)
		}
	}
	return t.change(c)
}

// change makes a change, again and again while a thread blocks it.
func (t *Target) change(c *target.Change) error {
	live := maps.Clone(t.live)
	for _, s := range c.Add {
		live[s] = true
	}
	p := t.newPlan(c)
	words, fresh, err := t.home.heads(live, slices.Concat(c.Remove, t.zombie))
	if err != nil {
		return err
	}
	p.heads = words
	if err = t.attempt(p); err != nil {
		return errors.Join(err, fresh[0].unmap(), fresh[1].unmap())
	}
	old := t.home.tables
	t.home.tables = fresh
	t.live = live
	t.buried(p, c.Remove)
	return errors.Join(old[0].unmap(), old[1].unmap())
}

// attempt makes a planned change, again and again while a thread blocks it.
func (t *Target) attempt(p *plan) error {
	var err error
	late := 0
	for i := range commitTries {
		if i > 0 {
			time.Sleep(commitWait * time.Duration(i))
		}
		if err = t.home.refit(unix.SIGURG); err != nil {
			break
		}
		if err = t.stopped(p); !errors.Is(err, ErrBlocked) {
			break
		}
		if p.late {
			late++
		}
		if late == lateTries {
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
		return errno.Errorf(unix.EBUSY, "thread %d may return to 0x%x: %w", p.tid, p.at, ErrBlocked)
	case foreignBytes:
		return errno.Errorf(unix.EBUSY, "0x%x: %w", p.at, ErrForeign)
	case writeFailed:
		return fmt.Errorf("code at 0x%x can not be written: %w", p.at, p.errno)
	}
	return nil
}

// setMask sets the thread's signal mask.
//
//go:norace
//go:nosplit
func setMask(set, old *uint64) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
}

// newPlan prepares a change.
func (t *Target) newPlan(c *target.Change) *plan {
	p := &plan{adding: len(c.Add) > 0, home: t.home.words(), mem: int(t.mem.Fd()), lay: t.lay, places: &t.places}
	p.ways(c, t.zombie)
	for _, s := range t.zombie {
		p.zombies = append(p.zombies, zombie{span: detourOf(s)})
	}
	p.bound()
	p.edits = editsOf(c)
	return p
}

// ways tells where threads go on that are in bytes or detours which a change takes away.
func (p *plan) ways(c *target.Change, zombies []*target.Site) {
	for _, s := range c.Add {
		for _, pr := range s.Detour.Pairs {
			if pr.Orig > s.Addr && pr.Orig < s.Addr+uint64(len(s.Patch)) {
				p.inner = append(p.inner, move{from: pr.Orig, to: beginOf(s, pr)})
			}
		}
	}
	at := landingsOf(c.Add)
	for _, s := range slices.Concat(c.Remove, zombies) {
		if p.insideNew(s) { // else a thread in the detour may finish there
			p.leave(s, at)
		}
	}
	byFrom := func(a, b move) int { return cmp.Compare(a.from, b.from) }
	slices.SortStableFunc(p.inner, byFrom)
	slices.SortStableFunc(p.back, byFrom)
	slices.SortFunc(p.gone, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
}

// leave has threads leave a detour that must not be left by its own way back.
func (p *plan) leave(s *target.Site, at landings) {
	p.gone = append(p.gone, detourOf(s))
	for _, pr := range s.Detour.Pairs {
		to := at.copy(pr.Orig)
		if pr.Copy == s.Detour.Back { // that is not the region's, nor its work
			to = at.begin(pr.Orig)
		}
		p.back = append(p.back, move{from: pr.Copy, to: to, sp: pr.SP})
	}
	for orig, begin := range s.Detour.Points {
		p.back = append(p.back, move{from: begin, to: at.begin(orig)})
	}
}

// insideNew says whether what comes behind a site's region is inside a new patch: then a
// thread must not come back from the site's detour.
func (p *plan) insideNew(s *target.Site) bool {
	for _, pr := range s.Detour.Pairs {
		if pr.Copy == s.Detour.Back {
			return slices.ContainsFunc(p.inner, func(m move) bool { return m.from == pr.Orig })
		}
	}
	return false
}

// landing is where a thread goes on that comes from another detour of the instruction: where
// its work begins, or, if that has been done there, at its copy.
type landing struct{ begin, copy uint64 }

// landings are those of the regions of new sites, by the instruction. A thread that runs a
// region's instruction in the program's own code, behind the patch, would pass its work.
type landings map[uint64]landing

func landingsOf(add []*target.Site) landings {
	m := landings{}
	for _, s := range add {
		for _, pr := range s.Detour.Pairs {
			if _, ok := m[pr.Orig]; !ok {
				m[pr.Orig] = landing{beginOf(s, pr), pr.Copy}
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

// beginOf is where a thread goes on that is to run an instruction of a region, with its work.
func beginOf(s *target.Site, pr arch.Pair) uint64 {
	if at, ok := s.Detour.Points[pr.Orig]; ok {
		return at
	}
	return pr.Copy
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
	var out []edit
	standing := map[uint64]*target.Site{}
	for _, s := range c.Remove {
		standing[s.Addr] = s
	}
	var adds []edit
	for _, s := range c.Add {
		e := newEdit(s.Addr, s.Orig, s.Patch)
		if r := standing[s.Addr]; r != nil && len(r.Patch) == len(s.Patch) {
			e = newEdit(s.Addr, r.Patch, s.Patch)
			delete(standing, s.Addr)
			e.check = true
		} else {
			e.check = !overlaps(c.Remove, s)
		}
		adds = append(adds, e)
	}
	for _, s := range standing {
		e := newEdit(s.Addr, s.Patch, s.Orig)
		e.check = true
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].addr < out[j].addr })
	return append(out, adds...)
}

func newEdit(addr uint64, old, now []byte) edit {
	e := edit{addr: addr, n: len(now)}
	copy(e.old[:], old[:min(len(old), len(now))])
	copy(e.new[:], now)
	return e
}

// overlaps says whether a site's bytes are those of a site that goes too.
func overlaps(gone []*target.Site, s *target.Site) bool {
	return slices.ContainsFunc(gone, func(r *target.Site) bool {
		return r.Addr < s.Addr+uint64(len(s.Patch)) && s.Addr < r.Addr+uint64(len(r.Patch))
	})
}

// buried takes the removed sites into the zombies and gives back the room of those in which
// no thread was.
func (t *Target) buried(p *plan, removed []*target.Site) {
	var left []*target.Site
	var free []room.Span
	for i, s := range t.zombie {
		if p.dirty || p.zombies[i].busy {
			left = append(left, s)
			continue
		}
		delete(t.live, s)
		free = append(free, room.Span{Addr: s.Detour.Addr, Size: s.Room})
	}
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
