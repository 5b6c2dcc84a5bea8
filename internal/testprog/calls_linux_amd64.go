package testprog

import (
	"fmt"
	"maps"
	"runtime"

	"golang.org/x/sys/unix"
)

// SystemCalls counts, by number, the system calls of a thread that waits for input in a read,
// until it waits in one again; neither read is among them. It calls input when it watches, which
// is to give the thread its input. Nobody else may trace the thread.
//
// It watches by ptrace, and so knows nothing of probes.
func SystemCalls(tid int, input func()) (map[uint64]int, error) {
	type result struct {
		calls map[uint64]int
		err   error
	}
	watching, done := make(chan bool), make(chan result)
	go func() {
		runtime.LockOSThread() // a tracer is a thread; it ends with this goroutine
		calls, err := watch(tid, watching)
		done <- result{calls, err}
	}()
	for {
		select {
		case <-watching:
			input()
		case r := <-done:
			return r.calls, r.err
		}
	}
}

// runtimeCalls are what Go's runtime calls when it preempts a goroutine and hands its processor on.
var runtimeCalls = []uint64{unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_TGKILL, unix.SYS_GETPID, unix.SYS_RT_SIGRETURN}

// WithoutRuntime takes the calls of Go's runtime out of the system calls of n hits: a busy machine lets goroutines run for
// so long that the runtime preempts them, now and then. A call that is made in a tenth of the hits is theirs, and stays.
func WithoutRuntime(calls map[uint64]int, n int) map[uint64]int {
	out := maps.Clone(calls)
	for _, nr := range runtimeCalls {
		if out[nr] < n/10 {
			delete(out, nr)
		}
	}
	return out
}

// watch follows the thread from system call to system call.
func watch(tid int, watching chan<- bool) (map[uint64]int, error) {
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, unix.PTRACE_O_TRACESYSGOOD, 0, 0); e != 0 {
		return nil, fmt.Errorf("thread %d: seize: %w", tid, e)
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return nil, err
	}
	calls := map[uint64]int{}
	for entry, reads := true, 0; ; {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(tid, &ws, unix.WALL, nil); err != nil {
			return nil, err
		}
		if !ws.Stopped() {
			return nil, fmt.Errorf("thread %d has ended: %#x", tid, ws)
		}
		signal := 0
		switch sig := ws.StopSignal(); {
		case sig == unix.SIGTRAP|0x80:
			if entry {
				var regs unix.PtraceRegs
				if err := unix.PtraceGetRegs(tid, &regs); err != nil {
					return nil, err
				}
				if regs.Orig_rax == unix.SYS_READ {
					reads++
				}
				switch {
				case reads == 2:
					return calls, unix.PtraceDetach(tid)
				case regs.Orig_rax == unix.SYS_READ: // the interrupted one begins anew
					watching <- true
				default:
					calls[regs.Orig_rax]++
				}
			}
			entry = !entry
		case ws>>16 == 0:
			signal = int(sig) // one for the program
		}
		if err := unix.PtraceSyscall(tid, signal); err != nil {
			return nil, err
		}
	}
}
