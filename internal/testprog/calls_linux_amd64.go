package testprog

import (
	"fmt"
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
