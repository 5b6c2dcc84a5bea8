package self

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/symbol"
)

// maskStepper runs a program under ptrace and executes instruction by instruction what its
// threads do while their signals are blocked, and what the children of forks do until exec.
// SIGTRAP can not serve to tell: a step unblocks it. SIGSEGV is blocked and unblocked
// together with it everywhere in the runtime (blockableSig).
type maskStepper struct {
	t       *testing.T
	pid     int
	im      *symbol.Image
	space   *symbol.Space
	bias    uint64
	path    map[uint64]string
	threads map[int]*steppedThread
	handled map[unix.Signal]int // handlers that were stepped through
	seen    map[uint64]uint64   // entry of a function in the program to a pc in it
	outside map[string]int      // instructions in other files
	files   []fileRange
	steps   int
}

// steppedThread is one thread of the program.
type steppedThread struct {
	child    bool // of a fork
	skipping bool // in a handler that is not looked at
}

// maxHandlers is how many runs of a signal's handler are stepped through.
const maxHandlers = 25

const stepOptions = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
	unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL

// stepBlocked runs the program. The calling test's goroutine stays on its thread.
func stepBlocked(t *testing.T, program string) *maskStepper {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &maskStepper{
		t: t, pid: cmd.Process.Pid, threads: map[int]*steppedThread{},
		handled: map[unix.Signal]int{}, seen: map[uint64]uint64{}, outside: map[string]int{},
	}
	defer func() {
		if s.pid != 0 {
			unix.Kill(s.pid, unix.SIGKILL)
		}
	}()
	s.im = openImage(t, program)
	var ws unix.WaitStatus
	if _, err := unix.Wait4(s.pid, &ws, unix.WALL, nil); err != nil || !ws.Stopped() {
		t.Fatalf("start: %v, status %#x", err, ws)
	}
	if err := unix.PtraceSetOptions(s.pid, stepOptions); err != nil {
		t.Fatal(err)
	}
	s.bias = loadBias(t, s.pid, s.im)
	s.space = symbol.NewSpace()
	s.space.Add(s.im, s.bias, "")
	s.threads[s.pid] = &steppedThread{}
	s.goOn(unix.PTRACE_SYSCALL, s.pid, 0)
	for s.pid != 0 {
		s.wait()
	}
	cmd.Process.Release()
	return s
}

// wait deals with one event of one thread.
func (s *maskStepper) wait() {
	var ws unix.WaitStatus
	tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
	if err == unix.EINTR {
		return
	}
	if err != nil {
		s.t.Fatalf("wait: %v", err)
	}
	if ws.Exited() || ws.Signaled() {
		s.ended(tid, ws)
		return
	}
	th := s.threads[tid]
	if th == nil { // the event of its maker has not come yet
		th = &steppedThread{child: tgid(tid) != s.pid}
		s.threads[tid] = th
	}
	switch sig := ws.StopSignal(); {
	case sig == unix.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_EXEC && th.child:
		s.goOn(unix.PTRACE_DETACH, tid, 0)
		delete(s.threads, tid)
	case sig == unix.SIGTRAP || sig == unix.SIGTRAP|0x80 || sig == unix.SIGSTOP:
		s.next(tid, th)
	default:
		s.deliver(tid, th, sig)
	}
}

func (s *maskStepper) ended(tid int, ws unix.WaitStatus) {
	delete(s.threads, tid)
	if tid != s.pid {
		return
	}
	s.pid = 0
	if ws.ExitStatus() != 0 {
		s.t.Fatalf("the program ended with status %#x", ws)
	}
}

// deliver gives a signal to its thread, which is at the handler's first instruction next.
func (s *maskStepper) deliver(tid int, th *steppedThread, sig unix.Signal) {
	if s.path == nil && sig == unix.SIGUSR1 {
		s.findPath()
	}
	s.handled[sig]++
	if s.handled[sig] > maxHandlers && !th.child {
		th.skipping = true
		s.goOn(unix.PTRACE_SYSCALL, tid, sig)
		return
	}
	s.goOn(unix.PTRACE_SINGLESTEP, tid, sig)
}

// next notes what a thread with blocked signals executes.
func (s *maskStepper) next(tid int, th *steppedThread) {
	blocked := s.blocks(tid)
	th.skipping = th.skipping && blocked
	if !th.child && !blocked || th.skipping {
		s.goOn(unix.PTRACE_SYSCALL, tid, 0)
		return
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err == nil {
		s.note(regs.Rip)
	}
	s.goOn(unix.PTRACE_SINGLESTEP, tid, 0)
}

func (s *maskStepper) note(pc uint64) {
	s.steps++
	if fn, _, ok := s.im.At(pc - s.bias); ok {
		s.seen[fn.Addr+s.bias] = pc
		return
	}
	s.outside[s.where(pc)]++
}

// fileRange is where a file is mapped.
type fileRange struct {
	lo, hi uint64
	name   string
}

// where names the file that an address is mapped from.
func (s *maskStepper) where(pc uint64) string {
	for range 2 {
		for _, r := range s.files {
			if r.lo <= pc && pc < r.hi {
				return r.name
			}
		}
		s.files = s.files[:0]
		maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", s.pid))
		for line := range strings.Lines(string(maps)) {
			var r fileRange
			if _, err := fmt.Sscanf(line, "%x-%x", &r.lo, &r.hi); err == nil {
				f := strings.Fields(line)
				r.name = filepath.Base(f[len(f)-1])
				s.files = append(s.files, r)
			}
		}
	}
	return "?"
}

func (s *maskStepper) blocks(tid int) bool {
	const getSigMask = 0x420a // PTRACE_GETSIGMASK (linux/ptrace.h)
	var mask uint64
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, getSigMask, uintptr(tid), 8, uintptr(unsafe.Pointer(&mask)), 0, 0)
	return e == 0 && mask>>(uint(unix.SIGSEGV)-1)&1 != 0
}

func (s *maskStepper) goOn(request uintptr, tid int, sig unix.Signal) {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(tid), 0, uintptr(sig), 0, 0)
	if e != 0 && e != unix.ESRCH {
		s.t.Fatalf("ptrace request %d of thread %d: %v", request, tid, e)
	}
}

// findPath computes the signal path of the program as it is now.
func (s *maskStepper) findPath() {
	var err error
	s.path, err = codescan.SignalPath(s.space, func(addr uint64, buf []byte) error {
		local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
		_, err := unix.ProcessVMReadv(s.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}, 0)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// tgid is the process that a thread belongs to.
func tgid(tid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	_, rest, _ := strings.Cut(string(status), "\nTgid:")
	var id int
	fmt.Sscan(rest, &id)
	return id
}

// missing lists what was executed and is not in the path.
func (s *maskStepper) missing() []string {
	var out []string
	for addr, pc := range s.seen {
		if s.path[addr] == "" {
			fn, _, _ := s.im.At(addr - s.bias)
			out = append(out, fmt.Sprintf("%s+0x%x", fn, pc-addr))
		}
	}
	slices.Sort(out)
	return out
}

// names are the functions that were executed.
func (s *maskStepper) names() map[string]uint64 {
	out := map[string]uint64{}
	for addr := range s.seen {
		fn, _, _ := s.im.At(addr - s.bias)
		out[fn.Name] = addr
	}
	return out
}

// TestSignalPathByStepping executes a program instruction by instruction where it has its
// signals blocked: every function that it comes to is in the signal path.
func TestSignalPathByStepping(t *testing.T) {
	for _, v := range []struct {
		name  string
		env   []string
		flags []string
		want  []string // more that must have been executed
		long  bool     // it is tried in long runs
	}{
		{"plain", []string{"CGO_ENABLED=0"}, nil, []string{"runtime.clone", "runtime.runPerThreadSyscall"}, false},
		{"stripped_pie", []string{"CGO_ENABLED=0"}, []string{"-buildmode=pie", "-ldflags=-s -w"}, nil, true},
		{oldGo, append(oldEnv, "CGO_ENABLED=0"), nil, nil, true},
		{"cgo", []string{"CGO_ENABLED=1"}, nil, []string{"threadentry", "runtime.needm", "runtime.dropm", "runtime.badsignal"}, false},
	} {
		if v.long && !Long {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			s := stepBlocked(t, buildBlocked(t, v.env, v.flags...))
			for _, m := range s.missing() {
				t.Errorf("%s runs with signals blocked and is not in the signal path", m)
			}
			names := s.names()
			for _, n := range append(v.want, "runtime.sigprof", "runtime.doSigPreempt", "runtime.sigsend", "runtime.mstart1",
				"runtime.mexit", "runtime.(*sigctxt).preparePanic", "syscall.forkAndExecInChild1") {
				if names[n] == 0 {
					t.Errorf("%s was not executed with signals blocked: the program does not do what it is for", n)
				}
			}
			t.Logf("%d of the path's %d functions in %d steps; handlers %v; steps in other files %v",
				len(s.seen), len(s.path), s.steps, s.handled, s.outside)
			delete(s.path, names["runtime.sigprof"])
			if m := s.missing(); len(m) != 1 || !strings.HasPrefix(m[0], "runtime.sigprof+") {
				t.Errorf("missing without runtime.sigprof: %q", m)
			}
		})
	}
}

// buildBlocked builds testdata/blocked.
func buildBlocked(t *testing.T, env []string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "blocked")
	build := exec.Command("go", append(append([]string{"build", "-o", program}, flags...), "./testdata/blocked")...)
	build.Env = append(os.Environ(), env...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	return program
}
