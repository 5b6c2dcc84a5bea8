package process

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// The stacks of handlers in a Go program lie side by side in one mapping. The first page of each is a guard, where the kernel has such in a mapping of a file (MADV_GUARD_INSTALL, from
// Linux 6.15 on): a handler that needs more faults there, and is ended like one that faults elsewhere, since Go's threads have alternate stacks for signals. On an
// older kernel, and where a seccomp filter forbids the call, there are none.

const (
	madvGuardInstall = 102    // linux/mman.h
	pidfdSelf        = -10001 // PIDFD_SELF_THREAD_GROUP of linux/pidfd.h
	iovecSize        = 16     // struct iovec
)

// guardStacks makes the guards, all by one system call, whose argument stands where descriptors will. Precondition: the world is stopped.
func (l *inLine) guardStacks(s *ptrace.Stopped) error {
	at := l.data.Start + descsOff
	var pages []byte
	for n := range uint64(slotCount) {
		pages = le.AppendUint64(pages, l.data.Start+inLineSize+n*handlerSize)
		pages = le.AppendUint64(pages, procfs.PageSize)
	}
	if err := l.t.p.WriteMem(at, pages); err != nil {
		return err
	}
	self := int64(pidfdSelf)
	_, _ = s.Call(unix.SYS_PROCESS_MADVISE, uint64(self), at, uint64(len(pages)/iovecSize), madvGuardInstall, 0) // else there are no guards
	return l.t.p.WriteMem(at, make([]byte, len(pages)))
}
