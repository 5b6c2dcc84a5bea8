package process

import (
	"fmt"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// The decisions that a caller can take on an error of this package. Each comes wrapped
// with what happened, and each also satisfies errors.Is with the errno in brackets.
var (
	// ErrNoProcess: there is none with that pid, or it has ended [ESRCH].
	ErrNoProcess = ptrace.ErrNoProcess
	// ErrPermission: the kernel does not let us trace it [EPERM].
	ErrPermission = ptrace.ErrPermission
	// ErrUnsupported: a process of a kind that cannot be probed: of another instruction
	// set, 32 bits wide, with shadow stacks, a kernel thread [ENOEXEC].
	ErrUnsupported = ptrace.ErrUnsupported
	// ErrSelf: the process is the caller's own [EINVAL].
	ErrSelf = ptrace.ErrSelf
	// ErrChild: it is the caller's own child, whose stops a wait in the caller would take
	// for its end [ECHILD].
	ErrChild = ptrace.ErrChild
	// ErrBusy: another tracer is attached, or another engine holds it [EBUSY].
	ErrBusy = ptrace.ErrBusy
	// ErrOwn: the process probes itself: its own engine patches its code [EBUSY].
	ErrOwn = errno.Errorf(syscall.EBUSY, "process probes itself")
	// ErrExec: the process runs another program now; its old memory is gone [ESTALE].
	ErrExec = ptrace.ErrExec
	// ErrStuck: a thread did not arrive at a stop in time; all were let go [ETIMEDOUT].
	ErrStuck = ptrace.ErrStuck
	// ErrNoThread: no thread can make a system call for us right now. Later it may be
	// different: threads move [EAGAIN].
	ErrNoThread = ptrace.ErrNoThread
	// ErrSeccomp: the process's own filter forbids the system call [EACCES].
	ErrSeccomp = ptrace.ErrSeccomp
	// ErrFault: memory that is not there, or does not take what is written [EFAULT].
	ErrFault = ptrace.ErrFault
	// ErrNoGap: no free range of addresses fits [ENOMEM].
	ErrNoGap = ptrace.ErrNoGap
	// ErrReleased: the Stopped was released before, or the target got lost [EBADF].
	ErrReleased = ptrace.ErrReleased
)

// StuckError says which threads kept a stop from completing. It is an ErrStuck.
type StuckError = ptrace.StuckError

// StuckThread is one thread that did not stop.
type StuckThread = ptrace.StuckThread

// Holder is the process that holds another for its probes.
type Holder = procfs.Holder

// HeldError says who holds a process. It is an ErrBusy, and an ErrOwn if the process holds itself.
type HeldError struct {
	PID    int // the process that was asked for
	Holder Holder
}

func (e *HeldError) Error() string {
	if e.own() {
		return fmt.Sprintf("process %d: %v: %s", e.PID, ErrOwn, adviceOwn)
	}
	return fmt.Sprintf("process %d: %v: held by %v", e.PID, ErrBusy, e.Holder)
}

// Unwrap makes errors.Is(err, ErrBusy) hold.
func (e *HeldError) Unwrap() error { return ErrBusy }

// Is makes errors.Is(err, ErrOwn) hold where the process holds itself.
func (e *HeldError) Is(target error) bool { return target == ErrOwn && e.own() }

func (e *HeldError) own() bool { return e.PID == e.Holder.PID }

// adviceOwn is what to do instead of probing a process that probes itself.
const adviceOwn = "package kprobes.dev/kprobes is in use in it, whose patches must not be mixed with ours: " +
	"let the program register what is to be probed (package debughttp serves that over HTTP), or close its registry (Core.Close)"
