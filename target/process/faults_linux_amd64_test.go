package process

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// A signal has interrupted our handler of faults, and the program's handler of that one runs: the
// tables that ours is in the middle of are not written. They are where the program's handler only
// returns to ours. In both cases ours is not taken out.
func TestInterruptedLookup(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	h.handle("add", func(*amd64.Regs) arch.Action { return arch.ActionGo })
	h.want("nap", "ok")
	f := h.tg.faults
	main := func(s *ptrace.Stopped) *ptrace.Thread { return s.Threads()[0] }
	retry(t, func() error {
		return h.tg.stopped(func(s *ptrace.Stopped) error {
			if err := f.install(s); err != nil {
				return err
			}
			th := main(s)
			r := th.Regs()
			r.RIP, r.OrigRAX = f.resident.Entry+1, ptrace.NoSyscall
			return errors.Join(th.SetRegs(r), unix.Tgkill(th.TGID, th.TID, unix.SIGUSR1))
		})
	})
	eventually(t, "the thread has taken the signal", func() bool {
		taken := false
		retry(t, func() error {
			return h.tg.stopped(func(s *ptrace.Stopped) error {
				if taken = !f.resident.Looking(main(s).ResumePC()); !taken {
					return nil // stopped before it could
				}
				return h.interrupted(s, main(s))
			})
		})
		return taken
	})
	if err := h.tg.Close(); err != nil {
		t.Error(err)
	}
}

// interrupted looks at a thread that a signal has taken out of our handler of faults. In the end
// it kills the program.
func (h *handled) interrupted(s *ptrace.Stopped, th *ptrace.Thread) error {
	f := h.tg.faults
	if tid, busy := f.busy(s); !busy || tid != th.TID {
		h.t.Errorf("our handler was interrupted in thread %d: %v, %d", th.TID, busy, tid)
	}
	if err := h.tg.commitStopped(s, &target.Change{}); !errors.Is(err, ErrBlocked) {
		h.t.Errorf("a change while a table is read: %v", err)
	}
	if err := f.uninstall(s); !errors.Is(err, ErrInDetour) {
		h.t.Fatalf("our handler is taken out, and was interrupted: %v", err)
	}
	var saved uint64
	err := h.tg.contexts(s, false, func(_ *ptrace.Thread, at, v uint64) {
		if v == f.resident.Entry+1 {
			saved = at
		}
	})
	back := le.AppendUint64(nil, f.resident.Trap-1)
	err = errors.Join(err, h.tg.p.WriteMem(saved, make([]byte, 8)), h.tg.p.WriteMem(saved-savedIPOff, back))
	if tid, busy := f.busy(s); busy {
		h.t.Errorf("a handler of the program's returns to ours: thread %d is said to be in it", tid)
	}
	if err := f.uninstall(s); !errors.Is(err, ErrInDetour) {
		h.t.Errorf("our handler is taken out, and a handler of the program's returns to it: %v", err)
	}
	return errors.Join(err, unix.Kill(h.tg.p.PID(), unix.SIGKILL)) // it could not go on
}

// caught gives the signals of ours that the program has a handler for.
func (h *handled) caught() (sigs []unix.Signal) {
	h.t.Helper()
	st, err := h.tg.p.Status()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, sig := range ourSignals {
		if st.Catches(int(sig)) {
			sigs = append(sigs, sig)
		}
	}
	return sigs
}

// A handler can not be installed for each signal: no disposition that leads to ours is left where
// it is taken out, and the next change installs what is missing.
func TestHalfInstalled(t *testing.T) {
	for _, again := range []bool{false, true} {
		h := handle(t, handledProgram(t), never)
		c := h.callOf(&target.Handler{Run: plain(func(*amd64.Regs) arch.Action { return arch.ActionGo })})
		s := h.fresh("add", c, arch.Policy{Force: arch.TacticBoost})
		all := faultSignals
		faultSignals = []unix.Signal{unix.SIGSEGV, unix.SIGKILL} // the kernel refuses the second
		err := h.tg.Commit(&target.Change{Add: []*target.Site{s}})
		faultSignals = all
		if sigs := h.caught(); !errors.Is(err, unix.EINVAL) || !slices.Equal(sigs, []unix.Signal{unix.SIGSEGV}) {
			t.Errorf("signals %v are caught: %v", sigs, err)
		}
		if again {
			h.installsLater(s)
		}
		h.disarm()
		retry(t, h.tg.Close)
		if sigs := h.caught(); len(sigs) > 0 {
			t.Errorf("signals %v are still caught", sigs)
		}
		h.clean()
		h.tg.proc.Close()
	}
}

// installsLater arms a breakpoint, once its handler could not be installed.
func (h *handled) installsLater(site *target.Site) {
	h.t.Helper()
	f := h.tg.faults
	retry(h.t, func() error {
		return h.tg.stopped(func(s *ptrace.Stopped) error {
			f.wantTraps = false
			if err := f.install(s); err != nil {
				return err
			}
			f.wantTraps = true
			s.SetScratch(interval.Range{Start: 1 << 20, End: 1<<20 + 64<<10}) // nothing is there
			defer s.SetScratch(interval.Range{})
			if err := f.install(s); err == nil || f.traps {
				h.t.Errorf("a handler of SIGTRAP is there: %v, %v", f.traps, err)
			}
			return nil
		})
	})
	retry(h.t, func() error { return h.tg.Commit(&target.Change{Add: []*target.Site{site}}) })
	h.sites["add0"] = site
	if sigs := h.caught(); !slices.Equal(sigs, ourSignals) {
		h.t.Errorf("signals %v are caught, want %v", sigs, ourSignals)
	}
	h.want("add 1 2", "ok 3")
}

// A thread is about to step a copy with a trap flag of the engine's when it is moved into the program's code:
// it does not take the flag along, for nobody may be there any more to take the signal.
func TestMovedWithoutTrapFlag(t *testing.T) {
	for _, left := range []bool{false, true} {
		h := handle(t, handledProgram(t), never)
		c := h.callOf(&target.Handler{Run: plain(func(*amd64.Regs) arch.Action { return arch.ActionGo })})
		site := h.fresh("add", c, arch.Policy{Force: arch.TacticStep})
		retry(t, func() error { return h.tg.Commit(&target.Change{Add: []*target.Site{site}}) })
		retry(t, func() error { return h.tg.stopped(func(s *ptrace.Stopped) error { return h.moved(s, site, left) }) })
		h.want("add 40 2", "ok 42")
		h.end()
	}
}

// moved removes a breakpoint, and looks at a thread that was at the copy of its instruction then; or,
// where the tracer left, at one that came there later.
func (h *handled) moved(s *ptrace.Stopped, site *target.Site, left bool) error {
	th := s.Threads()[0]
	was := th.Regs()
	copied := site.Detour.Pairs[slices.IndexFunc(site.Detour.Pairs, func(p arch.Pair) bool { return p.Orig == site.Addr })].Copy
	at := func(pc uint64) error {
		r := was
		r.RIP, r.OrigRAX, r.Flags = pc, ptrace.NoSyscall, r.Flags|ptrace.TrapFlag
		return th.SetRegs(r)
	}
	remove := func() error { return h.tg.commitStopped(s, &target.Change{Remove: []*target.Site{site}}) }
	var err error
	if left {
		err = errors.Join(at(site.Detour.Addr+1), remove(), at(copied))
		l, e := findLeftover(h.tg.p)
		if e != nil || l == nil {
			h.t.Fatalf("left: %v, %v", l, e)
		}
		err = errors.Join(err, l.moveOut(s))
	} else {
		err = errors.Join(at(copied), remove())
	}
	if r := th.Regs(); r.RIP != site.Addr || r.Flags&ptrace.TrapFlag != 0 {
		h.t.Errorf("left %v: it goes on at 0x%x, want 0x%x, with flags 0x%x", left, r.RIP, site.Addr, r.Flags)
	}
	return errors.Join(err, th.SetRegs(was), h.tg.control.clear([]*target.Site{site}))
}

// savedIPOff is how far behind its return address a signal frame has the instruction pointer.
const savedIPOff = 8 + 40 + 128
