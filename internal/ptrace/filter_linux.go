package ptrace

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
)

// CallOf gives a system call of the machine that comes from anywhere. The values of the arguments whose numbers are in
// open are not known.
func CallOf(nr uint64, args [6]uint64, open ...int) CallData {
	d := CallData{nr: uint32(nr), arch: auditArch, args: args, open: openIP}
	for _, n := range open {
		d.open |= openArg(n)
	}
	return d
}

const maxFilters = 1 << 12

// getFilters reads a thread's seccomp filters.
func getFilters(tid int) (filterList, error) {
	var list filterList
	for i := uintptr(0); i < maxFilters; i++ {
		step("getfilter")
		n, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), i, 0, 0, 0)
		if e == unix.ENOENT {
			return list, nil
		}
		if e != 0 {
			return nil, fmt.Errorf("%w: it has a filter that cannot be read: %w: PTRACE_SECCOMP_GET_FILTER takes CAP_SYS_ADMIN, no filter on ourselves and CONFIG_CHECKPOINT_RESTORE",
				ErrSeccomp, e)
		}
		f := make(filter, n)
		if _, _, e = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), i, uintptr(unsafe.Pointer(unsafe.SliceData(f))), 0, 0); e != 0 {
			return nil, fmt.Errorf("seccomp filter: %w", e)
		}
		list = append(list, f)
	}
	return nil, fmt.Errorf("%w: more than %d filters", ErrSeccomp, maxFilters)
}

// MayNotCall says why the thread may not make the system calls, which are there to do something. before is its status
// before the stop, nil if that is not known. It must run on the tracer's thread.
func (t *Thread) MayNotCall(do string, calls []CallData, before *procfs.Status) (why, err error) {
	if t.mayCall {
		return nil, nil
	}
	if t.dispatchesSyscalls() {
		return errno.Errorf(unix.EOPNOTSUPP, "thread %d dispatches its system calls to itself", t.TID), nil
	}
	mode, err := t.seccomp(before)
	if err != nil {
		return nil, err
	}
	switch mode {
	case procfs.SeccompNone:
		t.mayCall = true
		return nil, nil
	case procfs.SeccompStrict:
		return fmt.Errorf("thread %d may not %s: %w: strict mode", t.TID, do, ErrSeccomp), nil
	}
	filters, err := getFilters(t.TID)
	if err != nil {
		return fmt.Errorf("thread %d: %w", t.TID, err), nil
	}
	for i := range calls {
		ok, err := filters.allows(&calls[i])
		if err != nil {
			return fmt.Errorf("thread %d: %w: %w", t.TID, ErrSeccomp, err), nil
		}
		if !ok {
			return fmt.Errorf("thread %d may not %s: %w", t.TID, do, ErrSeccomp), nil
		}
	}
	return nil, nil
}

// seccomp gives a thread's mode of seccomp: what it was before the stop, if it had none then and the
// kernel knows no filter now. (Strict mode, which a thread could have entered in between, has been out
// of use since there are filters: threads of a program that has several can do little in it.)
func (t *Thread) seccomp(before *procfs.Status) (mode procfs.Seccomp, err error) {
	if before != nil && before.Seccomp == procfs.SeccompNone {
		_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(t.TID), 0, 0, 0, 0)
		if e == unix.EINVAL {
			return procfs.SeccompNone, nil
		}
	}
	st, err := t.Status()
	if err != nil {
		return 0, err
	}
	return st.Seccomp, nil
}
