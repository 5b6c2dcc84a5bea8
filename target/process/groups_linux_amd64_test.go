package process

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// A thread that waits is in the detour that it came from, also while a signal handler of the
// program runs on top of its wait: nothing of that detour is freed. It is not replaced by bytes
// that it goes back into: what must be made fails, and a group is left out, with the thread in the
// reason, while another one goes in.
func TestWaiterHoldsDetour(t *testing.T) {
	for _, signal := range []bool{false, true} {
		h := handle(t, handledProgram(t), never)
		hold := make(chan struct{})
		var runs atomic.Uint64
		th := &target.Handler{Run: plain(func(*amd64.Regs) arch.Action {
			runs.Add(1)
			<-hold
			return arch.ActionGo
		})}
		c := h.callOf(th)
		old := h.fresh("add", c, arch.Policy{Force: arch.TacticBoost}) // it goes back behind the first instruction
		retry(t, func() error { return h.tg.Commit(&target.Change{Add: []*target.Site{old}}) })
		h.sites["add0"] = old
		h.want("nap", "ok")
		eventually(t, "thread in the handler", func() bool { return runs.Load() == 1 })
		if signal {
			h.want("asleep", "ok 1")
		}
		busy := &target.Group{Remove: []*target.Site{old}, Add: []*target.Site{h.fresh("add", c, arch.Policy{})}}
		if err := h.tg.commitOnce(&target.Change{Remove: busy.Remove, Add: busy.Add}); !errors.Is(err, ErrBlocked) {
			t.Errorf("a probe is replaced that a thread waits in (signal: %v): %v", signal, err)
		}
		free := &target.Group{Add: []*target.Site{h.fresh("scale", c, arch.Policy{})}}
		h.leftOut(old, busy, free)
		h.disarm()
		if z := h.tg.Remaining(); !slices.Contains(z, old) {
			t.Errorf("the detour of a thread that waits is free (signal: %v)", signal)
		}
		close(hold)
		h.want("wake", "ok 1 0")
		retry(t, func() error { return h.tg.Commit(&target.Change{}) })
		if z := h.tg.Remaining(); len(z) > 0 {
			t.Errorf("%d detours are held by nobody", len(z))
		}
		busy.Remove = nil
		h.sites["add0"] = busy.Add[0]
		again := &target.Change{Groups: []*target.Group{busy}}
		if retry(t, func() error { return h.tg.Commit(again) }); busy.Blocked != nil {
			t.Errorf("the thread has left: %v", busy.Blocked)
		}
		h.end()
	}
}

// leftOut commits a group that a thread is in the way of, for it waits in old, and one that it
// is not.
func (h *handled) leftOut(old *target.Site, busy, free *target.Group) {
	h.t.Helper()
	done := 0
	ch := &target.Change{Groups: []*target.Group{busy, free}, Then: func() error { done++; return nil }}
	retry(h.t, func() error { return h.tg.Commit(ch) })
	var who *target.BusyError
	if !errors.As(busy.Blocked, &who) || !errors.Is(busy.Blocked, ErrBlocked) || who.TID == 0 || free.Blocked != nil || done != 1 {
		h.t.Fatalf("blocked: %v, %v; then was called %d times", busy.Blocked, free.Blocked, done)
	}
	h.sites["scale0"] = free.Add[0]
	for _, s := range []*target.Site{old, free.Add[0]} {
		have := make([]byte, len(s.Patch))
		if err := h.tg.Read(s.Addr, have); err != nil || !bytes.Equal(have, s.Patch) {
			h.t.Errorf("0x%x: % x, %v, want % x", s.Addr, have, err, s.Patch)
		}
	}
}

// fresh makes a site at a function's entry that calls a handler. The function may have one.
func (h *handled) fresh(name string, c *arch.Call, p arch.Policy) *target.Site {
	h.t.Helper()
	old := h.sites[name+"0"]
	fn, at := h.analysed(name, func(addr uint64, code []byte) {
		if old != nil {
			copy(code[old.Addr-addr:], old.Orig)
		}
	})
	work := map[uint64][]arch.ProbeOp{at.Addr: {{Role: arch.RoleCall, Call: c}}}
	regions, refused := fn.Plan([]uint64{at.Addr}, p)
	if len(refused) > 0 {
		h.t.Fatal(refused)
	}
	s := h.site(name, fn, regions[0], work)
	if old != nil {
		copy(s.Orig, old.Orig)
	}
	return s
}

// A breakpoint becomes a jump and the jump a breakpoint, and the tracer may die at any step: a
// thread that has run the breakpoint and takes its signal then goes to a detour that does not
// go back to inside what stands there, and whose faults the handler of faults knows. So does one
// that comes by what stands there.
func TestTrapTableAtEveryStep(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	c := h.callOf(&target.Handler{Run: plain(func(*amd64.Regs) arch.Action { return arch.ActionGo })})
	var old *target.Site
	for i, p := range []arch.Policy{{Force: arch.TacticBoost}, {}, {Force: arch.TacticBoost}, {}, {Force: arch.TacticBoost}} {
		s := h.fresh("add", c, p)
		ch := &target.Change{Add: []*target.Site{s}}
		if old != nil {
			ch.Remove = []*target.Site{old}
		}
		steps := 0
		ptrace.OnStep = func(what string) {
			if i > 0 {
				steps++
				h.trapGoesOn(what, s.Addr, old, s)
				h.faultsKnown(what, s.Addr, old, s)
			}
		}
		retry(t, func() error { return h.tg.Commit(ch) })
		ptrace.OnStep = nil
		if i > 0 && steps < 4 {
			t.Errorf("change %d: %d steps", i, steps)
		}
		old = s
		h.sites["add0"] = s
	}
	ptrace.OnStep = func(what string) { h.faultsKnown(what, old.Addr, old) }
	h.disarm()
	ptrace.OnStep = nil
	h.end()
}

// trapGoesOn checks where a thread goes on that has run a breakpoint at an address.
func (h *handled) trapGoesOn(what string, at uint64, sites ...*target.Site) {
	h.t.Helper()
	code := make([]byte, 1)
	if err := h.tg.Read(at, code); err != nil {
		h.t.Fatal(err)
	}
	n := 0
	for e := range slices.Chunk(h.table(hdrTraps, amd64.TrapEntrySize), amd64.TrapEntrySize) {
		if le.Uint64(e) != at {
			continue
		}
		n++
		s := siteAround(sites, le.Uint64(e[8:]))
		if s == nil {
			h.t.Errorf("before %s: a breakpoint at 0x%x leads to 0x%x, to no detour of its own", what, at, le.Uint64(e[8:]))
			continue
		}
		for _, p := range s.Detour.Pairs {
			if p.Copy == s.Detour.Back && code[0] == 0xe9 && p.Orig < at+amd64.JumpLen {
				h.t.Errorf("before %s: a jump stands at 0x%x, and a breakpoint there leads back to 0x%x", what, at, p.Orig)
			}
		}
	}
	if n != 1 {
		h.t.Errorf("before %s: %d entries of 0x%x", what, n, at)
	}
}

// faultsKnown checks that the table of faults that is in force knows every detour to which a thread
// comes: by the bytes at an address, or by a breakpoint there that it has run.
func (h *handled) faultsKnown(what string, at uint64, sites ...*target.Site) {
	h.t.Helper()
	known := map[amd64.FaultEntry]bool{}
	for e := range slices.Chunk(h.table(hdrFaults, amd64.FaultEntrySize), amd64.FaultEntrySize) {
		known[amd64.ReadFaultEntry(e)] = true
	}
	led := map[*target.Site]bool{}
	for e := range slices.Chunk(h.table(hdrTraps, amd64.TrapEntrySize), amd64.TrapEntrySize) {
		led[siteAround(sites, le.Uint64(e[8:]))] = true
	}
	for _, s := range sites {
		have := make([]byte, len(s.Patch))
		if err := h.tg.Read(at, have); err != nil {
			h.t.Fatal(err)
		}
		if !led[s] && !bytes.Equal(have, s.Patch) {
			continue
		}
		entries := amd64.AppendFaultEntries(nil, s.Detour)
		if i := slices.IndexFunc(entries, func(e amd64.FaultEntry) bool { return !known[e] }); i >= 0 || len(entries) == 0 {
			h.t.Errorf("before %s: of %d faults in the detour at 0x%x of 0x%x the handler does not know number %d", what, len(entries), s.Detour.Addr, at, i)
		}
	}
}

// table reads a table of the control block that is in force.
func (h *handled) table(head uint64, entry int) []byte {
	h.t.Helper()
	b := make([]byte, 16)
	if err := h.tg.Read(h.tg.control.addr+head, b); err != nil {
		h.t.Fatal(err)
	}
	table := make([]byte, le.Uint64(b[8:])*uint64(entry))
	if err := h.tg.Read(le.Uint64(b), table); err != nil {
		h.t.Fatal(err)
	}
	return table
}

// replaced is a change that puts a new jump in the place of one at a function's entry.
func (h *handled) replaced(name string, c *arch.Call) (old *target.Site, ch *target.Change) {
	h.t.Helper()
	old = h.fresh(name, c, arch.Policy{})
	retry(h.t, func() error { return h.tg.Commit(&target.Change{Add: []*target.Site{old}}) })
	h.sites[name+"0"] = old
	ch = &target.Change{Remove: []*target.Site{old}, Add: []*target.Site{h.fresh(name, c, arch.Policy{})}}
	if err := h.tg.writeDetours(ch.Add); err != nil {
		h.t.Fatal(err)
	}
	return old, ch
}

// Somebody else has written over a patch: a change does not write over that, nor does it leave
// half of it.
func TestForeignIsNotReplaced(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	c := h.callOf(&target.Handler{Run: plain(func(*amd64.Regs) arch.Action { return arch.ActionGo })})
	old, ch := h.replaced("add", c)
	theirs := append([]byte{0xcc}, old.Patch[1:]...)
	if err := h.tg.p.WriteMem(old.Addr, theirs); err != nil {
		t.Fatal(err)
	}
	if err := h.tg.Commit(ch); !errors.Is(err, ErrForeign) {
		t.Errorf("a change over somebody else's bytes: %v", err)
	}
	have := make([]byte, len(theirs))
	if err := h.tg.p.ReadMem(old.Addr, have); err != nil || !bytes.Equal(have, theirs) {
		t.Errorf("% x, %v, want % x", have, err, theirs)
	}
	if err := h.tg.p.WriteMem(old.Addr, old.Patch); err != nil {
		t.Fatal(err)
	}
	h.tg.foreign = nil
	h.end()
}

// A thread has a SIGTRAP to take. Perhaps it has run a breakpoint that has been replaced since: it
// stands behind that, and is not moved as one that stands at the second instruction.
func TestTrapThatComes(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	c := h.callOf(&target.Handler{Run: plain(func(*amd64.Regs) arch.Action { return arch.ActionGo })})
	trap := h.fresh("add", c, arch.Policy{Force: arch.TacticBoost})
	retry(t, func() error { return h.tg.Commit(&target.Change{Add: []*target.Site{trap}}) })
	retry(t, func() error { return h.tg.Commit(&target.Change{Remove: []*target.Site{trap}}) })
	old, ch := h.replaced("add", c)
	second := old.Detour.Pairs[1].Orig
	for _, p := range old.Detour.Pairs {
		if p.Orig > old.Addr {
			second = min(second, p.Orig)
		}
	}
	err := h.tg.stopped(func(s *ptrace.Stopped) error {
		th := s.Threads()[0]
		r := th.Regs()
		r.RIP, r.OrigRAX = second, ptrace.NoSyscall
		if err := th.SetRegs(r); err != nil {
			return err
		}
		if err := unix.Tgkill(th.TGID, th.TID, unix.SIGTRAP); err != nil {
			return err
		}
		if err := h.tg.commitStopped(s, ch); !errors.Is(err, ErrBlocked) || th.Regs().RIP != second {
			t.Errorf("the thread goes on at 0x%x, want 0x%x: %v", th.Regs().RIP, second, err)
		}
		return unix.Kill(h.tg.p.PID(), unix.SIGKILL) // the signal is not of our making
	})
	if err != nil && !errors.Is(err, ErrNoProcess) && !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
	if err := h.tg.Close(); err != nil {
		t.Error(err)
	}
}

// siteAround gives the site in whose detour an address is.
func siteAround(sites []*target.Site, at uint64) *target.Site {
	for _, s := range sites {
		if at-s.Detour.Addr < uint64(s.Room) {
			return s
		}
	}
	return nil
}
