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
// did to its system call.
func (t *Thread) arrived() (err error) {
	if t.regs, err = getRegs(t.TID); err != nil {
		return err
	}
	t.stopped, t.running = true, !t.regs.InSyscall()
	if t.regs.InSyscall() && -int64(t.regs.RAX) == errIntr && repeatable(t.regs.OrigRAX) && !t.signalled() {
		return t.setRegs(t.regs.again(t.regs.OrigRAX))
	}
	return nil
}

// signalled says whether a signal waits for the thread that it does not block.
func (t *Thread) signalled() bool {
	st, err := t.s.p.statusIn(t.g, t.TID)
	return err != nil || (st.SigPnd|st.ShdPnd)&^st.SigBlk != 0
}

// repeatable says whether a system call that returned EINTR has done nothing yet and can
// be made again with the same arguments. These are the calls of signal(7) that a stop
// interrupts, and those that do so on some files or sockets.
func repeatable(nr uint64) bool {
	switch nr {
	case unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2,
		unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_MSGRCV, unix.SYS_MSGSND,
		unix.SYS_IO_GETEVENTS, unix.SYS_IO_PGETEVENTS, unix.SYS_IO_URING_ENTER,
		unix.SYS_RT_SIGTIMEDWAIT,
		unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG,
		unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG,
		unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_CONNECT,
		unix.SYS_READ, unix.SYS_READV, unix.SYS_WRITE, unix.SYS_WRITEV,
		unix.SYS_POLL, unix.SYS_PPOLL, unix.SYS_SELECT, unix.SYS_PSELECT6,
		unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP,
		unix.SYS_FUTEX, unix.SYS_FUTEX_WAITV, unix.SYS_FUTEX_WAIT,
		unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_GETRANDOM:
		return true
	}
	return false
}

// Regs gives the registers as they stand. RIP is where the thread goes on, save where
// ResumeRIP says otherwise.
func (t *Thread) Regs() Regs { return t.regs }

// ResumeRIP is the address of the instruction that the thread runs next: RIP, or the
// system call instruction before it where the kernel makes the call again.
func (t *Thread) ResumeRIP() uint64 {
	if again, _ := t.regs.restarts(); again {
		return t.regs.RIP - syscallSize
	}
	return t.regs.RIP
}

// FSBase is the thread pointer: what %fs:0 addresses; 0 before the program has set it.
func (t *Thread) FSBase() uint64 { return t.regs.FSBase }

// InSyscall gives the number of the system call that the thread is in, whether it will be
// made again or return.
func (t *Thread) InSyscall() (nr uint64, in bool) { return t.regs.OrigRAX, t.regs.InSyscall() }

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

// resumeFlag is EFLAGS.RF: no instruction breakpoint on the next instruction, after which
// the processor clears it (SDM 3A 19.3.1.1).
const resumeFlag = 1 << 16

// release lets the thread go on by IRET. SYSRET is taken only where RCX holds RIP and R11
// the flags, and never with RF set, which it cannot restore (do_syscall_64).
func (t *Thread) release() error {
	r := t.regs
	if r.RCX == r.RIP && r.R11 == r.Flags {
		r.Flags |= resumeFlag
		if err := setRegs(t.TID, &r); err != nil {
			return err
		}
	}
	return ptrace(unix.PTRACE_DETACH, t.TID, 0, 0)
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
