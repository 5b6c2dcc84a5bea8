package ptrace

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OnStep, when set, is called before every request of ptrace and every write into a process:
// the fault tests end the tracer there. The names of requests that only read begin with "get".
var OnStep func(what string)

func step(what string) {
	if OnStep != nil {
		OnStep(what)
	}
}

// tracer is an operating system thread from which ptrace requests come. When it ends, the
// kernel detaches whatever it has attached, stopped or not, and lets it go on.
type tracer struct {
	tid  int
	work chan func()
	done chan struct{} // closed when the goroutine is about to end its thread
	// shared: others are traced by the thread too, and it goes on.
	shared bool
}

// newTracer starts a thread. It is never the process's first thread, which Go keeps when
// its goroutine ends, and with it all that it has attached.
func newTracer() *tracer {
	t := &tracer{work: make(chan func()), done: make(chan struct{})}
	ready := make(chan struct{})
	go t.run(ready)
	<-ready
	return t
}

func (t *tracer) run(ready chan<- struct{}) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// Hold the first thread until another goroutine has found another.
		again := make(chan struct{})
		go t.run(again)
		<-again
		close(ready)
		runtime.UnlockOSThread()
		return
	}
	t.tid = unix.Gettid()
	urgent()
	close(ready)
	for f := range t.work {
		f()
	}
	close(t.done)
	// Locked still: the thread ends with the goroutine.
}

// urgent puts the calling thread before all ordinary ones, where that is permitted: the
// target's own threads would otherwise keep the processors from it for milliseconds, while
// half of them stand still. It sleeps wherever it waits. What it starts is ordinary.
func urgent() {
	unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
}

// do runs f on the tracer's thread, at once if the caller is there already.
func (t *tracer) do(f func() error) (err error) {
	if unix.Gettid() == t.tid {
		return f()
	}
	back := make(chan struct{})
	t.work <- func() {
		defer close(back)
		err = f()
	}
	<-back
	return err
}

// end ends the thread and waits until the kernel has let go all that it had attached.
func (t *tracer) end() {
	if t.shared {
		return
	}
	close(t.work)
	<-t.done
	for wait := 20 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		if err := unix.Tgkill(os.Getpid(), t.tid, 0); errors.Is(err, unix.ESRCH) {
			return
		}
		time.Sleep(wait)
	}
}

// ptrace makes one request whose data are a number. It must run on the tracer's thread.
func ptrace(request int, tid int, addr, data uintptr) error {
	step(requestName(request))
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// ptraceAt makes one request whose data are in our memory. The address becomes a number
// only for the system call: before, our stack may move and the data with it.
func ptraceAt(request int, tid int, addr uintptr, data unsafe.Pointer) error {
	step(requestName(request))
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, uintptr(data), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

func requestName(request int) string {
	switch request {
	case unix.PTRACE_SEIZE:
		return "seize"
	case unix.PTRACE_INTERRUPT:
		return "interrupt"
	case requestGetRegs:
		return "getregs"
	case requestSetRegs:
		return "setregs"
	case unix.PTRACE_SETSIGMASK:
		return "setsigmask"
	case unix.PTRACE_SYSCALL:
		return "syscall"
	case unix.PTRACE_CONT:
		return "cont"
	case unix.PTRACE_DETACH:
		return "detach"
	case unix.PTRACE_GETREGSET:
		return "getregset"
	case unix.PTRACE_GETSIGMASK:
		return "getsigmask"
	case unix.PTRACE_GETEVENTMSG:
		return "geteventmsg"
	case unix.PTRACE_GET_RSEQ_CONFIGURATION:
		return "getrseq"
	case unix.PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG:
		return "getdispatch"
	}
	return fmt.Sprintf("request %#x", request)
}

// getSigMask gives the mask that the thread will have again when its system call is over.
func getSigMask(tid int) (mask uint64, err error) {
	err = ptraceAt(unix.PTRACE_GETSIGMASK, tid, 8, unsafe.Pointer(&mask))
	return mask, err
}

func setSigMask(tid int, mask uint64) error {
	return ptraceAt(unix.PTRACE_SETSIGMASK, tid, 8, unsafe.Pointer(&mask))
}

// getEventMsg gives what PTRACE_EVENT_FORK and the like tell: the new process.
func getEventMsg(tid int, msg *uint64) error {
	return ptraceAt(unix.PTRACE_GETEVENTMSG, tid, 0, unsafe.Pointer(msg))
}

// regset reads or writes a set of registers; n is how many bytes it has.
func regset(req, tid int, note uintptr, b []byte) (n uint64, err error) {
	iov := unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	err = ptraceAt(req, tid, note, unsafe.Pointer(&iov))
	runtime.KeepAlive(b)
	return iov.Len, err
}

// event is what a wait tells about a thread.
type event struct {
	gone   bool // it has ended, or was never attached
	exited bool // it has ended, with status
	signal int  // that it stopped with; SIGTRAP|0x80 at a system call
	kind   int  // PTRACE_EVENT_*, 0 if none
	status int  // of an end: exit code, or the signal that killed it
	killed bool
}

// siginfoChild is struct siginfo as waitid fills it.
type siginfoChild struct {
	signo, errno, code, _ int32
	pid, uid, status      int32
	_                     [100]byte
}

// The values of si_code for SIGCHLD (asm-generic/siginfo.h).
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// poll looks whether thread tid has stopped or ended. It leaves the news where it is
// (WNOWAIT): what a thread stopped for, a signal above all, stays its own if we die.
func poll(tid int) (ev event, ok bool, err error) {
	return waitid(tid, unix.WNOHANG)
}

func waitid(tid, flags int) (ev event, ok bool, err error) {
	var info siginfoChild
	_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(tid), uintptr(unsafe.Pointer(&info)),
		uintptr(flags|unix.WNOWAIT|unix.WSTOPPED|unix.WEXITED|unix.WALL), 0, 0)
	switch {
	case e == unix.ECHILD:
		return event{gone: true}, true, nil
	case e == unix.EINTR:
		return ev, false, nil
	case e != 0:
		return ev, false, fmt.Errorf("waitid: %w", e)
	case info.pid == 0:
		return ev, false, nil
	}
	status := int(info.status)
	switch info.code {
	case cldExited, cldKilled, cldDumped:
		return event{gone: true, exited: true, status: status, killed: info.code != cldExited}, true, nil
	}
	return event{signal: status & 0xff, kind: status >> 8}, true, nil
}

// await waits until thread tid has stopped or ended. For the first moments it stays on
// the processor, or gives it to the thread.
func await(tid int, deadline time.Time) (event, error) {
	for n := 0; ; n++ {
		ev, ok, err := poll(tid)
		if ok || err != nil {
			return ev, err
		}
		if err := pause(n, deadline); err != nil {
			return ev, err
		}
	}
}

// sleep waits between two looks at threads that are to arrive. We run before them: whatever time we take
// on the processor is one that they do not arrive on.
func sleep(n int, deadline time.Time) error {
	if !time.Now().Before(deadline) {
		return os.ErrDeadlineExceeded
	}
	ts := unix.Timespec{Nsec: int64(min(20*(n+1), 500)) * 1000}
	unix.Nanosleep(&ts, nil)
	return nil
}

// pause waits between two polls, longer the more there were.
func pause(n int, deadline time.Time) error {
	switch {
	case n < 20:
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		return nil
	case !time.Now().Before(deadline):
		return os.ErrDeadlineExceeded
	}
	ts := unix.Timespec{Nsec: int64(min(20*(n-19), 500)) * 1000}
	unix.Nanosleep(&ts, nil)
	return nil
}
