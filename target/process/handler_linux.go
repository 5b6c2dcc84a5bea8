package process

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target/patch"
)

// install puts the resident handler in place of the program's dispositions, which it
// hands on to. What fails is tried again with the next change; Close puts back whatever is ours.
// Precondition: the world is stopped.
func (f *faultTable) install(s *ptrace.Stopped) error {
	if f.resident == nil {
		control := f.t.control.addr
		h, err := f.build(native.HandlerEnv{
			Faults: control + hdrFaults, Traps: control + hdrTraps, Actions: control + hdrActions, Hooked: control + hdrHooked,
			ActionSize: actionSize, ActionHandler: 8, Resumes: f.t.golang == nil,
		})
		if err != nil {
			return err
		}
		f.resident = h
	}
	if !f.installed {
		if err := f.t.control.put(hdrResident, f.resident.Entry); err != nil { // first: stay looks there
			return err
		}
		for _, sig := range faultSignals {
			if err := f.replace(s, sig, f.resident.Entry, f.resident.Return); err != nil {
				return err
			}
		}
		f.installed = true
	}
	return f.installTrap(s)
}

// installTrap puts the handler of SIGTRAP in place once a breakpoint needs it.
// Precondition: the world is stopped.
func (f *faultTable) installTrap(s *ptrace.Stopped) error {
	if !f.wantTraps || f.traps {
		return nil
	}
	if err := f.replace(s, unix.SIGTRAP, f.resident.Trap, f.resident.Return); err != nil {
		return err
	}
	f.traps = true
	return nil
}

// whyNoTraps says why no breakpoint may stand in the process: a thread that blocks SIGTRAP, or runs a handler that does, is killed by
// one, and a program that handles SIGTRAP itself can replace our handler. Precondition:
// the world is stopped.
func whyNoTraps(s *ptrace.Stopped, all *[ptrace.Signals]ptrace.Sigaction) (why, err error) {
	const trap = 1 << (unix.SIGTRAP - 1)
	if all[unix.SIGTRAP].Handler != ptrace.SigDefault {
		return errno.Errorf(unix.EOPNOTSUPP, "the program has a disposition of its own for SIGTRAP"), nil
	}
	for sig, a := range all {
		if a.Handler > ptrace.SigIgnore && a.Mask&trap != 0 {
			return errno.Errorf(unix.EOPNOTSUPP, "the program's handler of signal %d blocks SIGTRAP", sig), nil
		}
	}
	return blocksTrap(s, nil)
}

// blocksTrap says why a thread would not live through a breakpoint. One that stands in the
// resident handler h blocks it for a moment: what counts is the mask that it goes back to, and
// the error is ErrBlocked where that is not known.
func blocksTrap(s *ptrace.Stopped, h *native.Handler) (why, err error) {
	err = s.Do(func() error {
		for _, th := range s.Threads() {
			m, err := th.SigMask()
			if err == nil && h != nil && blocks(m, unix.SIGTRAP) {
				m, err = maskBehind(s, th, h, m)
			}
			if err != nil {
				return err
			}
			if blocks(m, unix.SIGTRAP) {
				why = errno.Errorf(unix.EOPNOTSUPP, "thread %d blocks SIGTRAP", th.TID)
				break
			}
		}
		return nil
	})
	if why != nil || err != nil {
		return why, err
	}
	for _, th := range s.Parked() {
		if st, err := th.Status(); err != nil || blocks(st.SigBlk, unix.SIGTRAP) {
			return errno.Errorf(unix.EOPNOTSUPP, "thread %d, which waits for its vfork child, blocks SIGTRAP", th.TID), nil
		}
	}
	return nil, nil
}

func blocks(mask uint64, sig unix.Signal) bool { return mask>>(sig-1)&1 != 0 }

// maskBehind is the mask that a thread goes back to from the resident handler; mask if it is not
// in it.
func maskBehind(s *ptrace.Stopped, th *ptrace.Thread, h *native.Handler, mask uint64) (uint64, error) {
	switch pc := th.ResumePC(); {
	case h.Trapped(pc):
		return 0, nil // it has taken the signal
	case h.Leaving(pc):
		var b [8]byte
		err := s.Process().ReadMem(th.SP()+native.ContextMask, b[:])
		return binary.LittleEndian.Uint64(b[:]), err
	case h.Looking(pc):
		return 0, fmt.Errorf("%w: thread %d is in a signal handler of ours", ErrBlocked, th.TID)
	}
	return mask, nil
}

// allowTraps looks once more, in the stop that would install a breakpoint.
func (f *faultTable) allowTraps(s *ptrace.Stopped) error {
	if f.noTraps != nil {
		return f.noTraps
	}
	why, err := blocksTrap(s, f.resident)
	return errors.Join(why, err)
}

// Traps says why no breakpoint may stand in the process, though it is asked for by name. That is
// what is known now: a thread may come to block SIGTRAP later.
func (t *Target) Traps() error {
	if t.faults == nil {
		return nil
	}
	return t.faults.noTraps
}

// errUnasked is why no breakpoint stands that was not asked for: what was seen when it was armed
// says nothing of the time after it. The C library itself blocks all signals where a thread begins
// or ends, and in the child of posix_spawn, which has no resident handler either.
var errUnasked = errno.Errorf(unix.EOPNOTSUPP, "a breakpoint kills a thread that blocks SIGTRAP (where none does, tactic boost asks for one)")

// TrapsAt says why no breakpoint may stand in a function. A Go program's runtime takes SIGTRAP for
// itself, so that none may stand there either.
func (t *Target) TrapsAt(_ uint64, asked bool) error {
	if err := t.Traps(); err != nil || asked {
		return err
	}
	return errUnasked
}

// build generates the handler and writes it into the process.
func (f *faultTable) build(env native.HandlerEnv) (*native.Handler, error) {
	near := f.t.module[0].lo // it refers to nothing near it
	if len(f.t.code) > 0 {
		near = f.t.code[0].Addr
	}
	h, err := native.NewHandler(near, env)
	if err != nil {
		return nil, err
	}
	if len(h.Code) > stayBehind {
		return nil, fmt.Errorf("signal handlers of %d bytes: more than %d", len(h.Code), stayBehind)
	}
	f.room = len(h.Code) + patch.Align
	if f.handler, err = f.t.Code(near, near+procfs.PageSize, f.room); err != nil {
		return nil, err
	}
	if h, err = native.NewHandler(f.handler, env); err != nil {
		return nil, err
	}
	return h, f.t.p.WriteMem(f.handler, h.Code)
}

// Flags of struct kernel_sigaction that the handler needs (asm/signal.h).
const (
	actSiginfo   = 0x4
	actOnstack   = 0x08000000
	actRestorer  = 0x04000000
	actResethand = 0x80000000
)

// replace sets the handler for one signal. What was there is saved in the control block first.
func (f *faultTable) replace(s *ptrace.Stopped, sig unix.Signal, entry, restorer uint64) error {
	if f.set[sig] {
		return nil
	}
	old := f.previous[sig]
	slot := f.t.control.addr + hdrActions + uint64(sig)*actionSize
	b := binary.LittleEndian.AppendUint64(nil, 1)
	b = append(b, old.Bytes()...)
	if err := f.t.p.WriteMem(slot, b); err != nil {
		return err
	}
	now := ptrace.Sigaction{Handler: entry, Flags: old.Flags&^actResethand | actSiginfo | actRestorer, Restorer: old.Restorer, Mask: old.Mask}
	if old.Handler <= 1 {
		// Nothing else may run meanwhile: a handler of the program's would find the signal
		// blocked, and a probe that it hits would kill the program.
		now.Flags, now.Restorer, now.Mask = actSiginfo|actOnstack|actRestorer, restorer, ^uint64(0)
	}
	f.set[sig] = false
	if err := s.SetSigaction(int(sig), now); err != nil {
		return err
	}
	f.set[sig] = true
	return nil
}

// busy finds a thread that stands in the handler of faults: it may have the address of a detour
// in a register, which is not looked for there, or be in the middle of a table. It leaves by
// itself, soon. So it is with one that a signal has taken out of there: where the program handles
// faults itself, ours blocks no more than its handler did. Precondition: the world is stopped.
func (f *faultTable) busy(s *ptrace.Stopped) (tid int, busy bool) {
	if f.resident == nil {
		return 0, false
	}
	for _, th := range s.Threads() {
		if f.resident.Looking(th.ResumePC()) {
			return th.TID, true
		}
	}
	err := f.t.contexts(s, f.t.golang != nil, func(th *ptrace.Thread, at, v uint64) {
		if f.resident.Looking(v) && f.t.p.SavedIP(at) {
			tid, busy = th.TID, true
		}
	})
	return tid, busy || err != nil // what cannot be read may hold such a context
}

// taking gives the registers with which a thread goes on that is in the handler of SIGTRAP and
// has not said yet where its context goes on: it may have looked at what a change writes anew,
// and begins again. Precondition: the thread is stopped.
func (f *faultTable) taking(th *ptrace.Thread) (r ptrace.Regs, ok bool) {
	if f.resident == nil || !f.traps || !f.resident.Taking(th.ResumePC()) {
		return r, false
	}
	r = th.Regs()
	r.Shift(f.resident.Trap-th.ResumePC(), 0)
	return r, true
}

// trapped says whether a thread has run a breakpoint of the engine's and has yet to take its signal:
// its instruction pointer is behind it, and is not to be changed. Precondition: the thread is
// stopped.
func (f *faultTable) trapped(th *ptrace.Thread) (bool, error) {
	if !f.traps || !f.breakpoint(th.ResumePC()-1) {
		return false, nil
	}
	st, err := th.Status()
	return err == nil && st.SigPnd>>(unix.SIGTRAP-1)&1 != 0, err
}

// trapComes says whether a thread may have run a breakpoint that has been replaced since: a
// SIGTRAP waits for it, and what its instruction pointer then tells is not known. Precondition: the
// thread is stopped.
func (f *faultTable) trapComes(th *ptrace.Thread) bool {
	if !f.traps {
		return false
	}
	st, err := th.Status()
	return err != nil || st.SigPnd>>(unix.SIGTRAP-1)&1 != 0
}

// breakpoint says whether a breakpoint of the engine's stands at an address.
func (f *faultTable) breakpoint(at uint64) bool {
	for site := range f.live {
		if site.Trap && site.Addr == at {
			return true
		}
	}
	return false
}

// noTrapPending fails while a thread has yet to take the signal of a breakpoint of the engine's.
// Precondition: the world is stopped.
func (f *faultTable) noTrapPending(s *ptrace.Stopped) error {
	if !f.traps {
		return nil
	}
	return trapPending(s)
}

// trapPending fails if SIGTRAP is pending for a thread: it has run a breakpoint, and was
// stopped, perhaps twice, before it got the signal. Only our handler knows what to do
// then. Precondition: the world is stopped.
func trapPending(s *ptrace.Stopped) error {
	for _, th := range s.Threads() {
		st, err := th.Status()
		if err != nil {
			return err
		}
		if st.SigPnd>>(unix.SIGTRAP-1)&1 != 0 {
			return ErrInDetour
		}
	}
	return nil
}

// uninstall puts the program's dispositions back where ours still stand. It fails with
// ErrInDetour while a thread comes back to our handler: a signal has taken it out of there, or a
// handler of the program's returns to it. Precondition: the world is stopped.
func (f *faultTable) uninstall(s *ptrace.Stopped) error {
	if f.resident == nil {
		return nil
	}
	back := false
	err := f.t.contexts(s, f.t.golang != nil, func(_ *ptrace.Thread, at, v uint64) {
		// What returns to our restorer is our handler itself, or what an earlier frame has left.
		back = back || v-f.handler < uint64(f.room) && (!f.resident.Leaving(v) || f.t.p.SavedIP(at))
	})
	if err != nil {
		return err
	}
	if back {
		return ErrInDetour
	}
	var errs []error
	for _, sig := range ourSignals {
		if _, ours := f.set[sig]; !ours {
			continue
		}
		found := false
		old, err := savedDisposition(f.t.p, f.t.control.addr, sig)
		if err == nil {
			found, _, err = restoreDisposition(s, sig, old, f.handler, uint64(f.room))
		}
		if err != nil {
			errs = append(errs, err) // it stays in set: Close can be tried again
			continue
		}
		f.replaced = f.replaced || f.set[sig] && !found
		delete(f.set, sig)
	}
	if len(errs) == 0 {
		f.resident, f.installed, f.traps = nil, false, false
	}
	return errors.Join(errs...)
}

// savedDisposition reads what the handler keeps of a disposition: one that served once
// (SA_RESETHAND) has become the default since.
func savedDisposition(p *ptrace.Process, control uint64, sig unix.Signal) (ptrace.Sigaction, error) {
	b := make([]byte, actionSize)
	err := p.ReadMem(control+hdrActions+uint64(sig)*actionSize, b)
	return ptrace.ParseSigaction(b[8:]), err
}

// restoreDisposition puts back a disposition if the present one is a handler in
// [code, code+size): found. It gives what stands then.
func restoreDisposition(s *ptrace.Stopped, sig unix.Signal, old ptrace.Sigaction, code, size uint64) (found bool, now ptrace.Sigaction, err error) {
	now, err = s.Sigaction(int(sig))
	if err != nil || now.Handler-code >= size {
		return false, now, err
	}
	return true, old, s.SetSigaction(int(sig), old)
}
