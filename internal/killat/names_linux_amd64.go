package killat

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/symbol"
)

// symbols are the functions of a Go program that is linked at its addresses, stripped or not.
type symbols struct{ im *symbol.Image }

var loaded sync.Map // path → *symbols

// symbolsOf reads the table of functions of a program. The file stays open: there are few.
func symbolsOf(path string) (*symbols, error) {
	if s, ok := loaded.Load(path); ok {
		return s.(*symbols), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	im, err := symbol.Open(f, st.Size(), path, nil)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s := &symbols{im}
	loaded.Store(path, s)
	return s, nil
}

// add appends the name of the function that a call returns into.
func (s *symbols) add(out []string, pc uint64) []string {
	if fn, _, ok := s.im.At(pc - 1); ok {
		return append(out, fn.Name)
	}
	return out
}

// Name is the name of the point's system call; of ptrace(2) also the request.
func (pt *Point) Name() string {
	if pt.Nr == unix.SYS_PTRACE {
		if s, ok := requests[pt.Args[0]]; ok {
			return "ptrace " + s
		}
		return fmt.Sprintf("ptrace %#x", pt.Args[0])
	}
	if s, ok := calls[pt.Nr]; ok {
		return s
	}
	return fmt.Sprintf("call %d", pt.Nr)
}

var requests = map[uint64]string{
	unix.PTRACE_CONT: "cont", unix.PTRACE_GETREGS: "getregs", unix.PTRACE_SETREGS: "setregs", unix.PTRACE_DETACH: "detach",
	unix.PTRACE_SYSCALL: "syscall", unix.PTRACE_GETEVENTMSG: "geteventmsg", unix.PTRACE_GETSIGINFO: "getsiginfo",
	unix.PTRACE_GETREGSET: "getregset", unix.PTRACE_SETREGSET: "setregset", unix.PTRACE_SEIZE: "seize",
	unix.PTRACE_INTERRUPT: "interrupt", unix.PTRACE_GETSIGMASK: "getsigmask", unix.PTRACE_SETSIGMASK: "setsigmask",
	unix.PTRACE_GET_RSEQ_CONFIGURATION: "getrseq", unix.PTRACE_GET_SYSCALL_INFO: "getsyscallinfo",
	unix.PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: "getdispatch", unix.PTRACE_LISTEN: "listen", unix.PTRACE_PEEKSIGINFO: "peeksiginfo",
}

var calls = map[uint64]string{
	unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_CLOSE: "close", unix.SYS_FSTAT: "fstat", unix.SYS_LSEEK: "lseek",
	unix.SYS_MMAP: "mmap", unix.SYS_MPROTECT: "mprotect", unix.SYS_MUNMAP: "munmap", unix.SYS_RT_SIGACTION: "rt_sigaction",
	unix.SYS_RT_SIGPROCMASK: "rt_sigprocmask", unix.SYS_RT_SIGRETURN: "rt_sigreturn", unix.SYS_IOCTL: "ioctl",
	unix.SYS_PREAD64: "pread64", unix.SYS_PWRITE64: "pwrite64", unix.SYS_SCHED_YIELD: "sched_yield", unix.SYS_MADVISE: "madvise",
	unix.SYS_NANOSLEEP: "nanosleep", unix.SYS_GETPID: "getpid", unix.SYS_CLONE: "clone", unix.SYS_EXIT: "exit",
	unix.SYS_WAIT4: "wait4", unix.SYS_KILL: "kill", unix.SYS_FCNTL: "fcntl", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_READLINK: "readlink", unix.SYS_SIGALTSTACK: "sigaltstack", unix.SYS_STATFS: "statfs", unix.SYS_PRCTL: "prctl",
	unix.SYS_GETTID: "gettid", unix.SYS_FUTEX: "futex", unix.SYS_SCHED_SETAFFINITY: "sched_setaffinity",
	unix.SYS_SCHED_GETAFFINITY: "sched_getaffinity", unix.SYS_GETDENTS64: "getdents64", unix.SYS_EXIT_GROUP: "exit_group",
	unix.SYS_EPOLL_CTL: "epoll_ctl", unix.SYS_TGKILL: "tgkill", unix.SYS_OPENAT: "openat", unix.SYS_NEWFSTATAT: "newfstatat",
	unix.SYS_READLINKAT: "readlinkat", unix.SYS_FACCESSAT: "faccessat", unix.SYS_FACCESSAT2: "faccessat2", unix.SYS_EPOLL_PWAIT: "epoll_pwait",
	unix.SYS_EVENTFD2: "eventfd2", unix.SYS_EPOLL_CREATE1: "epoll_create1", unix.SYS_PRLIMIT64: "prlimit64",
	unix.SYS_PROCESS_VM_READV: "process_vm_readv", unix.SYS_PROCESS_VM_WRITEV: "process_vm_writev", unix.SYS_KCMP: "kcmp",
	unix.SYS_SCHED_SETATTR: "sched_setattr", unix.SYS_GETRANDOM: "getrandom", unix.SYS_MEMFD_CREATE: "memfd_create",
	unix.SYS_RSEQ: "rseq", unix.SYS_PIDFD_OPEN: "pidfd_open", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal",
	unix.SYS_PERF_EVENT_OPEN: "perf_event_open", unix.SYS_FLOCK: "flock", unix.SYS_PPOLL: "ppoll", unix.SYS_POLL: "poll",
	unix.SYS_WAITID: "waitid", unix.SYS_CLOCK_GETTIME: "clock_gettime", unix.SYS_PROCESS_MADVISE: "process_madvise", unix.SYS_UNAME: "uname",
	unix.SYS_SOCKET: "socket", unix.SYS_BIND: "bind", unix.SYS_FUTEX_WAITV: "futex_waitv", unix.SYS_GETUID: "getuid", unix.SYS_GETEUID: "geteuid",
}
