package ptrace

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"kprobes.dev/kprobes/internal/procfs"
)

// sentinel is an error that a caller can decide by. It also is an errno to errors.Is.
type sentinel struct {
	text  string
	errno syscall.Errno
}

func (s *sentinel) Error() string { return s.text }

// Is makes errors.Is(err, unix.ESRCH) and the like hold.
func (s *sentinel) Is(target error) bool { return target == s.errno }

// The decisions that a caller can take on an error of this package. Each comes wrapped
// with what happened, and each also satisfies errors.Is with the errno in brackets.
var (
	// ErrNoProcess: there is none with that pid, or it has ended [ESRCH].
	ErrNoProcess error = &sentinel{"no such process", syscall.ESRCH}
	// ErrPermission: the kernel does not let us trace it [EPERM].
	ErrPermission error = &sentinel{"not permitted", syscall.EPERM}
	// ErrUnsupported: a process of a kind that cannot be probed: of another instruction
	// set, 32 bits wide, with shadow stacks, a kernel thread [ENOEXEC].
	ErrUnsupported error = &sentinel{"not a process that can be probed", syscall.ENOEXEC}
	// ErrSelf: the process is the caller's own [EINVAL].
	ErrSelf error = &sentinel{"a process cannot trace itself", syscall.EINVAL}
	// ErrChild: it is the caller's own child, whose stops a wait in the caller would take
	// for its end [ECHILD].
	ErrChild error = &sentinel{"it is our own child, and may be waited for", syscall.ECHILD}
	// ErrBusy: another tracer is attached, or another engine holds it [EBUSY].
	ErrBusy error = &sentinel{"process is taken", syscall.EBUSY}
	// ErrExec: the process runs another program now; its old memory is gone [ESTALE].
	ErrExec error = &sentinel{"process has executed another program", syscall.ESTALE}
	// ErrStuck: a thread did not arrive at a stop in time; all were let go [ETIMEDOUT].
	ErrStuck error = &sentinel{"thread cannot be stopped", syscall.ETIMEDOUT}
	// ErrNoThread: no thread can make a system call for us right now. Later it may be
	// different: threads move [EAGAIN].
	ErrNoThread error = &sentinel{"no thread can make a system call", syscall.EAGAIN}
	// ErrSeccomp: the process's own filter forbids the system call [EACCES].
	ErrSeccomp error = &sentinel{"system call is forbidden by the target's seccomp filter", syscall.EACCES}
	// ErrFault: memory that is not there, or does not take what is written [EFAULT].
	ErrFault error = &sentinel{"memory cannot be accessed", syscall.EFAULT}
	// ErrNoGap: no free range of addresses fits [ENOMEM].
	ErrNoGap = procfs.ErrNoGap
	// ErrReleased: the Stopped was released before, or the target got lost [EBADF].
	ErrReleased error = &sentinel{"target is not stopped", syscall.EBADF}
)

// StuckThread is one thread that did not stop.
type StuckThread struct {
	TID     int
	Comm    string // its name, control bytes escaped
	State   string // letter of proc(5): "D" uninterruptible, "R" running
	Wchan   string // kernel function it waits in, or empty
	Syscall string // number of the system call it is in, or empty
}

func (t StuckThread) String() string {
	s := fmt.Sprintf("thread %d (%s) in state %s", t.TID, t.Comm, t.State)
	if t.Wchan != "" {
		s += ", waiting in " + t.Wchan
	}
	if t.Syscall != "" {
		s += ", system call " + t.Syscall
	}
	return s
}

// StuckError says which threads kept a stop from completing. It is an ErrStuck.
type StuckError struct {
	PID      int
	Attempts int
	Deadline time.Duration // of each attempt
	Threads  []StuckThread // the first few
	More     int           // how many others
}

func (e *StuckError) Error() string {
	var names []string
	for _, t := range e.Threads {
		names = append(names, t.String())
	}
	if e.More > 0 {
		names = append(names, fmt.Sprintf("%d more", e.More))
	}
	return fmt.Sprintf("process %d: %v within %v in %d attempts: %s; it runs on, try again when they have moved",
		e.PID, ErrStuck, e.Deadline, e.Attempts, strings.Join(names, "; "))
}

// Unwrap makes errors.Is(err, ErrStuck) hold.
func (e *StuckError) Unwrap() error { return ErrStuck }
