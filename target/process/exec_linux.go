package process

import "kprobes.dev/kprobes/internal/ptrace"

// Loaders is what MeetExec remembers of dynamic loaders, for all the processes that it meets.
type Loaders = ptrace.Loaders

// Met is a process that MeetExec has stopped.
type Met struct {
	Proc *Proc
	// Stopped is the process as it stands: for TargetOptions.Stopped, or to be released.
	Stopped *Stopped
	// Begun: code of the program may have run already.
	Begun bool
}

// MeetExec stops process pid before the first instruction of the program that its thread tid executes, while the kernel holds that thread in
// the system call: it waits for a permission, which allow gives (fanotify(7), FAN_OPEN_EXEC_PERM). allow is called in any case, and may be
// called by others meanwhile. The process is not killed if the caller ends: the kernel lets it run on.
//
// The process stands in its dynamic loader, where the objects that it needs are mapped and none of their code has run, or at its first
// instruction. Errors: ErrNoProcess, ErrBusy, ErrPermission, ErrUnsupported, ErrStuck; ENOEXEC if the exec has failed.
func MeetExec(pid, tid int, loaders *Loaders, allow func()) (Met, error) {
	m, err := ptrace.MeetExec(pid, tid, loaders, allow)
	return Met{newProc(m.Process), m.Stopped, m.Begun}, err
}
