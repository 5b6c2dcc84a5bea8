package ptrace

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// Thread is one stopped thread.
type Thread struct {
	TID  int // in our own pid namespace
	TGID int // its process: the target, or one that shares its memory

	s       *Stopped
	g       *group
	stopped bool
	told    bool // to stop
	parked  bool // see park
	running bool // it ran the program, and was in no system call
	regs    Regs
	mayCall bool // nothing forbids it any system call
	masked  bool // mask is known
	mask    uint64
	area    *RseqConfig // where its restartable sequences are; nil: nobody has asked yet
	answers bool        // to its own system calls (dispatchesSyscalls)
	asked   bool        // for answers
}

// sortThreads puts the target's own threads first.
func sortThreads(ts []*Thread) {
	slices.SortFunc(ts, func(a, b *Thread) int {
		own := func(t *Thread) int {
			if t.TGID == t.s.p.pid {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(own(a), own(b)), cmp.Compare(a.TID, b.TID))
	})
}

// arrive looks whether the thread has stopped or ended. A thread that stops to have a
// signal delivered is given it and told to stop again: it then stands at the handler's
// first instruction, and no signal is in our hands.
func (t *Thread) arrive() (done bool, err error) {
	ev, ok, err := poll(t.TID)
	switch {
	case err != nil || !ok:
		return false, err
	case ev.gone:
		t.reap(ev)
		return true, nil
	case ev.kind == unix.PTRACE_EVENT_STOP:
		return true, ignoreGone(t.arrived())
	}
	return false, ignoreGone(t.pass(ev))
}

// pass lets the thread have what it stopped for, and stop again before it runs on.
func (t *Thread) pass(ev event) error {
	if err := ptrace(unix.PTRACE_INTERRUPT, t.TID, 0, 0); err != nil {
		return err
	}
	sig := uintptr(ev.signal)
	if ev.kind != 0 || ev.signal&0x80 != 0 {
		sig = 0
	}
	return ptrace(unix.PTRACE_CONT, t.TID, 0, sig)
}

// reap buries a thread that has ended, so that an exec or exit of its process that waits
// for it can go on. The first thread is its parent's to bury.
func (t *Thread) reap(ev event) {
	t.stopped = false
	if ev.exited && t.TID != t.TGID {
		unix.Wait4(t.TID, nil, unix.WNOHANG|unix.WALL, nil)
	}
}

// ignoreGone passes over the error of a thread that was killed in the middle: a wait will
// tell of it.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// arrived takes the registers of a thread that has just stopped, and undoes what the stop
// did to its system call. As the thread goes on the kernel looks for signals first: if a handler runs the call ends with EINTR, else it is made again.
func (t *Thread) arrived() (err error) {
	if t.regs, err = getRegs(t.TID); err != nil {
		return err
	}
	t.stopped, t.running = true, !t.regs.InSyscall()
	if t.regs.InSyscall() && -t.regs.result() == errIntr && repeatable(t.regs.call()) {
		return t.setRegs(t.regs.undecided())
	}
	return nil
}

// The kernel's own results for system calls that are to be taken up again
// (include/linux/errno.h), which a stop makes visible in RAX.
const (
	errIntr         = 4   // EINTR, for the program to see
	errRestart      = 512 // ERESTARTSYS: again, unless a handler without SA_RESTART runs
	errRestartNoInt = 513 // ERESTARTNOINTR: again in any case
	errRestartNoHnd = 514 // ERESTARTNOHAND: again, unless a handler runs
	errRestartBlock = 516 // ERESTART_RESTARTBLOCK: by restart_syscall, which knows the time left
)

// Regs gives the registers as they stand. The instruction pointer is where the thread goes on, save where
// ResumePC says otherwise.
func (t *Thread) Regs() Regs { return t.regs }

// PC is the instruction pointer, as it stands.
func (t *Thread) PC() uint64 { return t.regs.PC() }

// SP is the stack pointer.
func (t *Thread) SP() uint64 { return t.regs.SP() }

// ResumePC is the address of the instruction that the thread runs next: where it stands, or the
// system call instruction before that where the kernel makes the call again.
func (t *Thread) ResumePC() uint64 { return t.regs.resumePC() }

// InSyscall gives the number of the system call that the thread is in, whether it will be
// made again or return.
func (t *Thread) InSyscall() (nr uint64, in bool) { return t.regs.call(), t.regs.InSyscall() }

// LastSyscall is the number of the system call that the thread is in or has just left, NoSyscall if it came to the
// kernel by other ways.
func (t *Thread) LastSyscall() uint64 { return t.regs.call() }

// SetRegs replaces the registers. Preconditions: a new RIP or RAX while the thread is in a
// system call takes OrigRAX = ^0 with it, or the kernel may move RIP back.
func (t *Thread) SetRegs(r Regs) error {
	return t.s.Do(func() error {
		if err := t.setRegs(r); err != nil {
			return fmt.Errorf("thread %d: registers: %w", t.TID, t.lost(err))
		}
		return nil
	})
}

func (t *Thread) setRegs(r Regs) error {
	if err := setRegs(t.TID, &r); err != nil {
		return err
	}
	t.regs = r
	return nil
}

// lost names what ESRCH means for a stopped thread: it was killed.
func (t *Thread) lost(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: it was killed while stopped", ErrNoProcess)
	}
	return err
}

// Xstate gives the vector registers in the layout of the xsave instruction's standard form, or, of a processor without
// it, in that of fxsave.
func (t *Thread) Xstate() (b []byte, err error) {
	err = t.s.Do(func() (err error) {
		b, err = getXstate(t.TID)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("thread %d: vector registers: %w", t.TID, t.lost(err))
	}
	return b, nil
}

// SetXstate writes what Xstate has given.
func (t *Thread) SetXstate(b []byte) error {
	err := t.s.Do(func() error { return setXstate(t.TID, b) })
	if err != nil {
		return fmt.Errorf("thread %d: vector registers: %w", t.TID, t.lost(err))
	}
	return nil
}

// AskAhead asks the kernel what only the thread itself can change, so that its answers are there when they are needed.
// What fails is asked again.
func (t *Thread) AskAhead() {
	_ = t.s.Do(func() error {
		t.dispatchesSyscalls()
		_, _ = t.rseq()
		_, _ = t.sigMask()
		return nil
	})
}

// SigMask gives the signals that the thread blocks (outside of a system call that changes
// them for its duration): bit n-1 is signal n.
func (t *Thread) SigMask() (mask uint64, err error) {
	err = t.s.Do(func() (err error) {
		mask, err = t.sigMask()
		return err
	})
	return mask, err
}

// sigMask is SigMask on the tracer's thread.
func (t *Thread) sigMask() (mask uint64, err error) {
	if !t.masked {
		t.mask, err = getSigMask(t.TID)
		t.masked = err == nil
	}
	return t.mask, t.lost(err)
}

// Status reads the thread's status file.
func (t *Thread) Status() (*procfs.Status, error) { return t.s.p.statusIn(t.g, t.TID) }

// release lets the thread go on by an instruction that serialises its processor, with a signal that it takes then; 0: none.
func (t *Thread) release(sig unix.Signal) error {
	if slow, fast := t.regs.fast(); fast {
		if err := setRegs(t.TID, &slow); err != nil {
			return err
		}
	}
	return ptrace(unix.PTRACE_DETACH, t.TID, 0, uintptr(sig))
}

// poke writes memory by words.
func (t *Thread) poke(addr uint64, buf []byte) error {
	for len(buf) > 0 {
		base := addr &^ 7
		var word [8]byte
		if err := t.s.p.ReadMem(base, word[:]); err != nil {
			return err
		}
		n := copy(word[addr-base:], buf)
		if err := ptrace(unix.PTRACE_POKETEXT, t.TID, uintptr(base), uintptr(le.Uint64(word[:]))); err != nil {
			return fmt.Errorf("process %d: write at %#x: %w: PTRACE_POKETEXT: %w", t.s.p.pid, addr, ErrFault, err)
		}
		addr, buf = addr+uint64(n), buf[n:]
	}
	return nil
}
