package watchpoint

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
)

// Opening opens the events of a watchpoint. Room makes its memory while all threads run. Thread may be called where no other
// thread of the own process runs: it allocates nothing, takes no lock and makes raw system calls.
type Opening struct {
	attr *unix.PerfEventAttr
	addr uint64 // that is watched
	cpus []eventsOn

	fds []int32  // of events
	ids []uint64 // the kernel's numbers of these
	n   int

	// What went wrong.
	step  openStep
	errno syscall.Errno
	tid   int
}

// eventsOn are the events on a CPU.
type eventsOn struct {
	cpu  int32
	ring int32 // descriptor of the ring that they write into; -1: they count
}

// openStep is a step of Thread that can fail.
type openStep uint8

const (
	stepNone openStep = iota
	stepRoom
	stepOpen
	stepID
	stepOutput
)

// ErrRoom is the error of an Opening that has met more threads than it has room for.
var ErrRoom = errors.New("more threads have come than there was room for")

// Room makes room for the events of so many threads, and has an Opening that failed begin anew.
func (o *Opening) Room(threads int) error {
	err := o.close()
	n := threads * len(o.cpus)
	o.fds, o.ids = make([]int32, n), make([]uint64, n)
	o.step = stepNone
	return err
}

// Thread opens the events of a thread, one for each CPU. One that has ended needs none. ok is false if that failed: Err has the
// reason, and no other thread is to follow.
//
//go:norace
func (o *Opening) Thread(tid int) (ok bool) {
	for i := range o.cpus {
		on := &o.cpus[i]
		if o.n == len(o.fds) {
			o.step = stepRoom
			return false
		}
		fd, _, no := syscall.RawSyscall6(unix.SYS_PERF_EVENT_OPEN, uintptr(unsafe.Pointer(o.attr)), uintptr(tid), uintptr(on.cpu), ^uintptr(0), unix.PERF_FLAG_FD_CLOEXEC, 0)
		if no == unix.ESRCH {
			return true
		}
		step := stepOpen
		if no == 0 {
			o.fds[o.n] = int32(fd)
			o.n++
			if on.ring < 0 {
				continue
			}
			if _, _, no = syscall.RawSyscall(unix.SYS_IOCTL, fd, unix.PERF_EVENT_IOC_ID, uintptr(unsafe.Pointer(&o.ids[o.n-1]))); no != 0 {
				step = stepID
			} else if _, _, no = syscall.RawSyscall(unix.SYS_IOCTL, fd, unix.PERF_EVENT_IOC_SET_OUTPUT, uintptr(on.ring)); no != 0 {
				step = stepOutput
			}
		}
		if no != 0 {
			o.step, o.errno, o.tid = step, no, tid
			return false
		}
	}
	return true
}

// Err says why Thread has failed; nil: it has not.
func (o *Opening) Err() error {
	what := ""
	switch o.step {
	case stepNone:
		return nil
	case stepRoom:
		return ErrRoom
	case stepID:
		what = "number of the event"
	case stepOutput:
		what = "ring of the event"
	case stepOpen:
		what = "perf_event_open"
		switch o.errno {
		case unix.ENOSPC:
			return errno.Errorf(unix.ENOSPC, "a processor has %d watchpoints, and all are taken", native.Watchpoints)
		case unix.EMFILE, unix.ENFILE:
			return fmt.Errorf("a watchpoint takes a descriptor for each thread and CPU: raise the limit (ulimit -n): %w", o.errno)
		}
	}
	return fmt.Errorf("watchpoint at 0x%x in thread %d: %s: %w", o.addr, o.tid, what, o.errno)
}

// try opens the events of a thread, and ends them: what is refused is refused before a thread stands. The kernel
// waits for all CPUs when it opens the first event of any task, and not again for a second after the last one has ended.
func (o *Opening) try(tid int) error {
	if err := o.Room(1); err != nil {
		return err
	}
	o.Thread(tid)
	return errors.Join(o.Err(), o.close())
}

// close ends the events.
func (o *Opening) close() error {
	fds := o.fds[:o.n]
	o.n = 0
	return closeAll(fds)
}

func closeAll(fds []int32) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(int(fd)))
	}
	return errors.Join(errs...)
}
