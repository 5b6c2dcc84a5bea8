package ptrace

import "golang.org/x/sys/unix"

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

// vforks says whether a system call is one that makes a child and waits for it.
func (s *Stopped) vforks(c wait) bool {
	const both = unix.CLONE_VM | unix.CLONE_VFORK
	switch c.nr {
	case unix.SYS_VFORK:
		return true
	case unix.SYS_CLONE:
		return c.args[0]&both == both
	case unix.SYS_CLONE3:
		var flags [8]byte // struct clone_args begins with them
		return s.p.ReadMem(c.args[0], flags[:]) == nil && le.Uint64(flags[:])&both == both
	}
	return false
}
