// Package killat kills a program at one of its system calls: a fault injector for programs
// that change others. It traces all threads of the program by ptrace(2), which the program
// itself may use on others meanwhile.
//
// The program tells by Mark what it is about to do, so that a system call can be named by the
// phase it belongs to. A kill at the entry comes before the kernel has done anything of the
// call, one at the exit after it has done all of it and before the program knows.
package killat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// marker is the request of prctl(2) by which a program tells its phase. The kernel knows no
// such request.
const marker = 0x6b617421

// maxPhase bounds the name of a phase, in bytes.
const maxPhase = 64

// Mark says that the calling program begins a phase, to the injector that runs it. Without
// one it does nothing.
func Mark(phase string) {
	filtered()
	b := []byte(phase)
	_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, marker, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	runtime.KeepAlive(b)
}

// Program is what is run.
type Program struct {
	Path string
	Args []string // without the name
	Env  []string
	// Phase is the phase that the program begins in. "": what it does before its first Mark
	// is not asked about.
	Phase string
	// Calls, if there are any, are the system calls that are points, from the first Mark on: the
	// program runs at its own speed between them.
	Calls []uint64
	// Patience is how long the program may take before it is killed and Run fails.
	Patience time.Duration
}

// Point is a place at which the program can be killed: the entry or the exit of a system call.
// It is valid until the function that it is given to returns.
type Point struct {
	Phase string // as marked last, by whichever thread
	N     int    // number in the phase, from 0, over all threads
	TID   int
	Exit  bool
	Nr    uint64
	Args  [6]uint64

	run *run
	r   syscall.PtraceRegs
}

// Outcome is how the program ended.
type Outcome struct {
	Status syscall.WaitStatus
	Struck bool // it was killed at a point
	Output string
	Points map[string]int // that were passed, by phase
}

// run is a program that runs.
type run struct {
	p      *Program
	pid    int
	phase  string
	known  map[int]bool // threads seen
	out    Outcome
	syms   *symbols
	strike func(*Point) bool
	late   atomic.Bool
}

// Run runs the program to its end. strike is asked at every point of every phase; where it
// says true the program is killed by SIGKILL, with all its threads where they are.
func (p *Program) Run(strike func(*Point) bool) (*Outcome, error) {
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	r := &run{p: p, phase: p.Phase, known: map[int]bool{}, strike: strike, out: Outcome{Points: map[string]int{}}}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer pr.Close()
	if err := r.start(pw); err != nil {
		return nil, err
	}
	text := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(pr) // what could be read
		text <- string(b)
	}()
	timer := time.AfterFunc(p.Patience, func() {
		r.late.Store(true)
		_ = syscall.Kill(r.pid, syscall.SIGKILL)
	})
	err = r.trace()
	timer.Stop()
	r.out.Output = <-text
	if err == nil && r.late.Load() && !r.out.Struck {
		err = fmt.Errorf("%s did not end within %v: %.2000s", p.Path, p.Patience, r.out.Output)
	}
	return &r.out, err
}

// start starts the program, stopped at its first instruction.
func (r *run) start(output *os.File) (err error) {
	defer output.Close()
	if r.syms, err = symbolsOf(r.p.Path); err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	proc, err := os.StartProcess(r.p.Path, append([]string{r.p.Path}, r.p.Args...), &os.ProcAttr{
		Env: append(slices.Clip(r.p.Env), r.p.variable()), Files: []*os.File{null, output, output}, Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return err
	}
	r.pid = proc.Pid
	_ = proc.Release() // it is waited for by trace
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(r.pid, &ws, syscall.WALL, nil); err != nil {
		return err
	}
	if !ws.Stopped() {
		return fmt.Errorf("%s: it has ended before it began: status %#x", r.p.Path, uint32(ws))
	}
	r.known[r.pid] = true
	options := unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESECCOMP
	if err := syscall.PtraceSetOptions(r.pid, options); err != nil {
		return errors.Join(err, syscall.Kill(r.pid, syscall.SIGKILL))
	}
	return r.resume(r.pid, 0, false)
}

// resume lets a thread go on to the next point. Between the entry of a call that the filter has
// stopped and its exit the kernel stops it as it stops one without a filter.
func (r *run) resume(tid int, sig syscall.Signal, inCall bool) error {
	if len(r.p.Calls) > 0 && !inCall {
		return syscall.PtraceCont(tid, int(sig))
	}
	return syscall.PtraceSyscall(tid, int(sig))
}

// trace goes from stop to stop until all threads have ended. They are waited for as a process
// group: this thread may have other children.
func (r *run) trace() error {
	for {
		var ws syscall.WaitStatus
		tid, err := syscall.Wait4(-r.pid, &ws, syscall.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.ECHILD):
			return nil
		case err != nil:
			return err
		case ws.Stopped():
			if err := r.stopped(tid, ws); err != nil && !errors.Is(err, syscall.ESRCH) { // killed
				return errors.Join(fmt.Errorf("thread %d of %s: %w", tid, r.p.Path, err), syscall.Kill(r.pid, syscall.SIGKILL))
			}
		case tid == r.pid:
			r.out.Status = ws
		}
	}
}

// sysStop is the signal of a stop at a system call (PTRACE_O_TRACESYSGOOD).
const sysStop = syscall.SIGTRAP | 0x80

// stopped deals with a stop of a thread and lets it go on.
func (r *run) stopped(tid int, ws syscall.WaitStatus) error {
	first := !r.known[tid]
	r.known[tid] = true
	sig := ws.StopSignal()
	entered := ws.TrapCause() == unix.PTRACE_EVENT_SECCOMP
	switch {
	case sig == sysStop || entered:
		if r.out.Struck {
			return nil
		}
		struck, err := r.at(tid)
		if err != nil || struck {
			return err
		}
		sig = 0
	case uint32(ws)>>16 != 0: // an event: another thread
		sig = 0
	case first && sig == syscall.SIGSTOP: // a new thread's
		sig = 0
	}
	return r.resume(tid, sig, entered)
}

// What PTRACE_GET_SYSCALL_INFO gives in its first byte (linux/ptrace.h).
const (
	infoEntry   = 1
	infoExit    = 2
	infoSeccomp = 3
	infoSize    = 88
)

// at asks what is to be done at a system call.
func (r *run) at(tid int) (struck bool, err error) {
	var info [infoSize]byte
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), infoSize, uintptr(unsafe.Pointer(&info)), 0, 0)
	if e != 0 {
		return false, e
	}
	if info[0] != infoEntry && info[0] != infoExit && info[0] != infoSeccomp {
		return false, nil
	}
	pt := &Point{TID: tid, Exit: info[0] == infoExit, run: r}
	if err := syscall.PtraceGetRegs(tid, &pt.r); err != nil {
		return false, err
	}
	pt.Nr = pt.r.Orig_rax
	pt.Args = [6]uint64{pt.r.Rdi, pt.r.Rsi, pt.r.Rdx, pt.r.R10, pt.r.R8, pt.r.R9}
	if pt.Nr == unix.SYS_PRCTL && pt.Args[0] == marker {
		return false, r.mark(pt)
	}
	if r.phase == "" {
		return false, nil
	}
	pt.Phase, pt.N = r.phase, r.out.Points[r.phase]
	r.out.Points[r.phase]++
	if !r.strike(pt) {
		return false, nil
	}
	r.out.Struck = true
	return true, syscall.Kill(r.pid, syscall.SIGKILL)
}

// mark takes the name of a phase.
func (r *run) mark(pt *Point) error {
	if pt.Exit || pt.Args[2] == 0 || pt.Args[2] > maxPhase {
		return nil
	}
	b := make([]byte, pt.Args[2])
	if err := pt.read(pt.Args[1], b); err != nil {
		return err
	}
	r.phase = string(b)
	return nil
}

// read reads the program's memory.
func (pt *Point) read(addr uint64, b []byte) error {
	local := []unix.Iovec{{Base: unsafe.SliceData(b), Len: uint64(len(b))}}
	n, err := unix.ProcessVMReadv(pt.run.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n != len(b) {
		err = fmt.Errorf("%d of %d bytes read at %#x", n, len(b), addr)
	}
	return err
}

// maxFrames bounds the frames of a stack that are looked at.
const maxFrames = 40

// Stack gives the names of the functions that the thread is in, innermost first, as the chain
// of frame pointers tells: complete for Go code on a goroutine's stack.
func (pt *Point) Stack() []string {
	var out []string
	var b [16]byte
	if pt.read(pt.r.Rsp, b[:8]) == nil { // the system call's wrapper has no frame
		out = pt.run.syms.add(out, binary.LittleEndian.Uint64(b[:]))
	}
	for fp, n := pt.r.Rbp, 0; fp != 0 && n < maxFrames && pt.read(fp, b[:]) == nil; n++ {
		out = pt.run.syms.add(out, binary.LittleEndian.Uint64(b[8:]))
		next := binary.LittleEndian.Uint64(b[:])
		if next <= fp {
			break
		}
		fp = next
	}
	return out
}
