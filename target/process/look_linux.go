package process

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
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

// lookThreads finds the threads that are to be moved, and those that are in the way.
func (t *Target) lookThreads(s *ptrace.Stopped, w *ways) *look {
	l, runs := &look{apart: w.ReturnsIntoOld()}, t.inLineRuns()
	for _, th := range s.Parked() {
		w.block(th.TID, th.ResumePC(), "it waits for its vfork child, and can not be moved")
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
			to := t.gateGoesTo(pc, th.Regs())
			w.block(th.TID, to, "it waits for the handler of a probe, and goes back into bytes that change")
		}
		for _, back := range runs.backs(th) {
			w.block(th.TID, back, "it runs a handler in line, and goes back into bytes that change")
		}
		way := w.Standing(pc)
		if after := th.PC(); after != pc {
			way = w.Calling(pc, after)
		}
		switch {
		case way.Fate == patch.Stays:
		case way.Fate == patch.Blocks:
			w.block(th.TID, way.To, "it runs the work of a probe, and goes back into bytes that change")
		case way.Fate == patch.Moves && t.faults.trapComes(th):
			w.block(th.TID, th.PC(), "it has a SIGTRAP to take, perhaps of a breakpoint that stood before it")
		default:
			r := th.Regs()
			r.Shift(way.To-pc, way.SP)
			if way.Fate == patch.Leaves && t.faults.traps { // it was about to step the copy
				r.Unstep()
			}
			l.moves = append(l.moves, threadMove{th, th.Regs(), r})
			l.apart = l.apart || w.InOld(way.To)
		}
	}
	return l
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
			switch l, h := w.Bounds(); {
			case lo == hi:
				lo, hi = l, h
			case l < h:
				lo, hi = min(lo, l), max(hi, h)
			}
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

// reclaim frees the detours of removed sites that no thread is in and no saved context
// may return to. What is left is tried again at the next change. Precondition: the
// world is stopped, and threads have been moved.
func (t *Target) reclaim(s *ptrace.Stopped) {
	if len(t.zombie) == 0 {
		return
	}
	retired := patch.NewRetired(t.zombie)
	for _, th := range s.Everyone() {
		for _, pc := range t.resumes(th) {
			retired.Mark(pc)
		}
	}
	backs, err := t.inLineResumes(s)
	if err != nil || t.savedContexts(s, t.golang != nil, retired.Mark) != nil {
		return // any may be in use
	}
	for _, pc := range backs {
		retired.Mark(pc)
	}
	busy, unused := retired.Split()
	free := make([]patch.Room, 0, len(unused))
	for _, z := range unused {
		t.faults.drop(z)
		if t.mail != nil {
			t.mail.Reclaim(z)
		}
		free = append(free, patch.Room{Addr: z.Detour.Addr, Size: z.Room})
	}
	t.freeCode(free...)
	t.setZombies(busy)
}
