package process

import (
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// A record whose arguments read memory makes a system call (internal/arch/amd64, checked.go): it
// asks which signals its thread blocks, and who handles SIGSEGV; where the signals of a fault are
// blocked, or the program has taken the handler's place, it looks at each address before it
// reads there. In a thread that seccomp would end for it no such
// call may be made. Then arguments read as they are, which the resident handler catches if
// the signals are not blocked, and if some are no argument may read memory.

// maskCalls are the two calls: rt_sigprocmask(SIG_BLOCK, NULL, place, 8), and
// rt_sigprocmask(-1, address, NULL, 8), whose first argument has 32 bits. They come from
// any detour.
var maskCalls = []ptrace.CallData{
	ptrace.CallOf(unix.SYS_RT_SIGPROCMASK, [6]uint64{unix.SIG_BLOCK, 0, 0, 8}, 2),
	ptrace.CallOf(unix.SYS_RT_SIGPROCMASK, [6]uint64{1<<32 - 1, 0, 0, 8}, 1),
}

// actionCalls is the question who handles SIGSEGV: rt_sigaction(SIGSEGV, NULL, place, 8).
var actionCalls = []ptrace.CallData{
	ptrace.CallOf(unix.SYS_RT_SIGACTION, [6]uint64{uint64(unix.SIGSEGV), 0, 0, 8}, 2),
}

// learnLoads finds out how arguments may read memory. Precondition: the world is stopped.
func (t *Target) learnLoads(s *ptrace.Stopped, all *[ptrace.Signals]ptrace.Sigaction) error {
	t.writer.Quiet, t.writer.Resident, t.writer.Unwind = t.control.addr+hdrQuiet, 0, t.control.addr+hdrUnwind
	why, err := t.whyNotCall(s, "look (rt_sigprocmask)", maskCalls)
	if err != nil {
		return err
	}
	if why == nil {
		other, err := t.whyNotCall(s, "look (rt_sigaction)", actionCalls)
		if other == nil {
			t.writer.Resident = t.control.addr + hdrResident
		}
		return err
	}
	t.writer.PlainLoads = true
	blocked, err := whyBlocked(s, all)
	if blocked != nil {
		t.noLoads = fmt.Errorf("a bad pointer would kill the process, for %w, and %w", blocked, why)
	}
	return err
}

// errNotBegun is why nothing may be read without a question where none may be asked.
var errNotBegun = errno.Errorf(unix.EAGAIN, "the Go runtime has not installed its signal handlers yet, and no system call may be made")

// Loads says why no argument may read memory.
func (t *Target) Loads() error {
	if t.begins && (t.writer.PlainLoads || t.writer.Resident == 0) {
		return errNotBegun
	}
	return t.noLoads
}

// whyNotCall says why a thread may not be made to make the system calls, which are there to
// do something. Precondition: the world is stopped.
func (t *Target) whyNotCall(s *ptrace.Stopped, do string, calls []ptrace.CallData) (why, err error) {
	err = s.Do(func() (err error) {
		for _, th := range s.Threads() {
			if why, err = th.MayNotCall(do, calls, t.before[th.TID]); why != nil || err != nil {
				break
			}
		}
		return err
	})
	if why != nil || err != nil {
		return why, err
	}
	for _, th := range s.Parked() {
		if st, err := th.Status(); err != nil || st.Seccomp != procfs.SeccompNone {
			return fmt.Errorf("thread %d waits for its vfork child, and may be forbidden to %s", th.TID, do), nil
		}
	}
	return nil, nil
}

// whyBlocked says who blocks the signals of a bad load: a thread, or a handler of the
// program while it runs. A fault there would kill the process instead of reaching our
// handler. Precondition: the world is stopped.
func whyBlocked(s *ptrace.Stopped, all *[ptrace.Signals]ptrace.Sigaction) (why, err error) {
	const bad = 1<<(unix.SIGSEGV-1) | 1<<(unix.SIGBUS-1)
	for sig, a := range all {
		if a.Handler > ptrace.SigIgnore && a.Blocks(sig)&bad != 0 {
			return fmt.Errorf("the program's handler of signal %d blocks SIGSEGV or SIGBUS", sig), nil
		}
	}
	err = s.Do(func() error {
		for _, th := range s.Threads() {
			m, err := th.SigMask()
			if err != nil {
				return err
			}
			if m&bad != 0 {
				why = fmt.Errorf("thread %d blocks SIGSEGV or SIGBUS", th.TID)
				break
			}
		}
		return nil
	})
	if why != nil || err != nil {
		return why, err
	}
	for _, th := range s.Parked() {
		if st, err := th.Status(); err != nil || st.SigBlk&bad != 0 {
			return fmt.Errorf("thread %d, which waits for its vfork child, blocks SIGSEGV or SIGBUS", th.TID), nil
		}
	}
	return nil, nil
}
