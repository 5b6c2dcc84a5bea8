package self

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// tries are the attempts at a change that a thread blocks.
var tries = patch.Tries{N: 60, Wait: 2 * time.Millisecond}

// Bounds of these attempts.
const (
	lateTries = 5 // in which a thread did not stop: all others stand meanwhile

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
	if newPlaces(all.Add, all.Remove) {
		if err := untraced(); err != nil {
			return err
		}
	}
	return t.change(c)
}

// newPlaces says whether one of the sites that come has no byte in common with those that go.
func newPlaces(add, remove []*target.Site) bool {
	gone := slices.SortedFunc(slices.Values(remove), func(a, b *target.Site) int { return cmp.Compare(a.Addr, b.Addr) })
	return slices.ContainsFunc(add, func(s *target.Site) bool {
		i, _ := slices.BinarySearchFunc(gone, s.Addr, func(g *target.Site, a uint64) int { return cmp.Compare(g.Addr, a) })
		behind := i < len(gone) && gone[i].Addr < s.Addr+uint64(len(s.Patch))
		before := i > 0 && s.Addr < gone[i-1].Addr+uint64(len(gone[i-1].Patch))
		return !behind && !before
	})
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
			var err error
			p.runs, err = patch.Runs(open.Add, open.Remove, patch.Joined)
			errs[0] = errors.Join(errs[0], err)
		}, func() { fresh, errs[1] = t.newHeads(open) })
		if err := errors.Join(errs[:]...); err != nil {
			return errors.Join(err, fresh.drop())
		}
		if len(c.Groups) > 0 {
			p.blocks = func() target.Blocks {
				b := p.blocked()
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
	t.retire(p, t.gone(p, c.Remove))
	return old.replaced(fresh)
}

// blocked tells which new sites the thread is in the way of that the plan has met.
func (p *plan) blocked() target.Blocks {
	b := target.Blocks{}
	why := &target.BusyError{TID: int(p.tid), Addr: p.at, Why: "it may go on in bytes or in a detour that change"}
	block := func(s *target.Site) { b.Block(s, why) }
	if p.handler {
		why.Why = "it runs a signal handler, and may come back to anywhere"
		p.threads.BlockedAnywhere(block)
	}
	if p.gate {
		p.threads.BlockedAnyDetour(block)
	}
	p.threads.Blocked(p.at, func(s *target.Site, _ bool) { block(s) })
	return b
}

// attempt makes a planned change, again and again while a thread blocks it that does not block
// groups only.
func (t *Target) attempt(p *plan) error {
	var err error
	late := 0
	for i := range tries.All() {
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

// setMask sets the thread's signal mask. Package codescan knows it by its name.
//
//go:noinline
//go:norace
//go:nosplit
func setMask(set, old *uint64) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
}

// newPlan prepares a change, but for the bytes that are written.
func (t *Target) newPlan(c *target.Change) *plan {
	return &plan{
		once: c.Once, control: t.control.words(), mem: int(t.mem.Fd()), lay: t.lay, places: &t.places,
		threads: patch.NewThreads(c.Add, c.Remove, t.zombie, patch.Policy{}), retired: patch.NewRetired(t.zombie),
	}
}

// gone are the removed sites whose patches have been taken out. The others hold somebody else's
// bytes, and their detours stay.
func (t *Target) gone(p *plan, removed []*target.Site) []*target.Site {
	left := map[*target.Site]bool{}
	for i := range p.runs {
		p.runs[i].Left(func(s *target.Site) { left[s] = true })
	}
	if len(left) == 0 {
		return removed
	}
	var out []*target.Site
	for _, s := range removed {
		if left[s] {
			t.foreign = append(t.foreign, s)
			continue
		}
		out = append(out, s)
	}
	return out
}

// retire takes the removed sites into the zombies and gives back the room of those in which
// no thread was.
func (t *Target) retire(p *plan, removed []*target.Site) {
	left, dead := t.zombie, []*target.Site(nil)
	if !p.dirty {
		left, dead = p.retired.Split()
	}
	free := make([]patch.Room, len(dead))
	for i, s := range dead {
		free[i] = patch.Room{Addr: s.Detour.Addr, Size: s.Room}
	}
	t.dead = append(t.dead, dead...)
	t.live -= len(dead)
	t.codeMu.Lock()
	t.freeCode(free...)
	t.codeMu.Unlock()
	t.zombie = slices.Concat(left, removed)
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
