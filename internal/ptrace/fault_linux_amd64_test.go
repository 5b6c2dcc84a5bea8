package ptrace

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// The tracer's side of the fault tests runs in a process of its own, which these name.
const (
	faultPID  = "KPROBES_TEST_TRACED" // whom to trace
	faultStep = "KPROBES_TEST_DIE_AT" // die before this step; 0: say how many there are; -1: go on for ever
)

// whole uses everything once that can change the target. releasing is called before the
// target is let go.
func whole(p *Process, releasing ...func()) (err error) {
	s, err := p.Stop(&StopOptions{Attempts: 30})
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range releasing {
			f()
		}
		err = errors.Join(err, s.Release())
	}()
	at, err := s.Mmap(0, 2*procfs.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		return err
	}
	if err := s.Mprotect(at, procfs.PageSize, unix.PROT_READ); err != nil {
		return err
	}
	for _, t := range s.Threads() {
		if err := t.SetRegs(t.Regs()); err != nil {
			return err
		}
		// each thread in its turn is the one that calls
		one := Stopped{p: s.p, t: s.t, threads: []*Thread{t}}
		if _, err := one.Call(unix.SYS_GETTID); err != nil {
			return err
		}
	}
	if _, err := s.Dispositions(); err != nil {
		return err
	}
	code := make([]byte, 64)
	rip := s.Threads()[0].Regs().RIP
	if err := p.ReadMem(rip, code); err != nil {
		return err
	}
	if err := p.WriteMem(rip, code); err != nil {
		return err
	}
	return s.Munmap(at, 2*procfs.PageSize)
}

// TestFaultTracer is no test: it is the tracer of those below, in its own process.
func TestFaultTracer(t *testing.T) {
	pid, err := strconv.Atoi(os.Getenv(faultPID))
	if err != nil {
		return
	}
	at, err := strconv.Atoi(os.Getenv(faultStep))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	OnStep = func(string) {
		if n++; n == at {
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	fmt.Println("start")
	for err := whole(p); at < 0; err = whole(p) {
		if err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("steps %d\n", n)
}

func faultTracer(pid, step int) *exec.Cmd {
	return reexec("TestFaultTracer", faultPID+"="+strconv.Itoa(pid), faultStep+"="+strconv.Itoa(step))
}

// steps counts what whole does to a process.
func steps(t *testing.T, pid int) int {
	t.Helper()
	out, err := faultTracer(pid, 0).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for l := range strings.Lines(string(out)) {
		if n, ok := strings.CutPrefix(l, "steps "); ok {
			steps, err := strconv.Atoi(strings.TrimSpace(n))
			if err != nil {
				t.Fatal(err)
			}
			return steps
		}
	}
	t.Fatalf("no count in %s", out)
	return 0
}

// The tracer is killed before each single request, and the target computes on, with its
// registers, masks and memory, and free.
func TestTracerDiesAtEveryStep(t *testing.T) {
	t.Run("live", func(t *testing.T) { diesAtSteps(t, run(t, build(t, "live"), "3"), 4) })
	t.Run("hold", func(t *testing.T) { diesAtSteps(t, run(t, build(t, "hold")), 4) })
	// It has many threads, and catches every signal: hundreds of steps, much the same.
	t.Run("go", func(t *testing.T) {
		r := run(t, gcProgram(t))
		diesAtSteps(t, r, 13)
		p := r.open()
		if err := whole(p); err != nil {
			t.Fatal(err)
		}
		for _, m := range mapsOf(t, p) {
			if m.Path == "[stack]" && !p.zero(m.Start, 3*signalRoom) {
				t.Error("frames of dead tracers are left below the stack")
			}
		}
	})
}

func diesAtSteps(t *testing.T, r *running, stride int) {
	t.Helper()
	p := r.open()
	n := min(steps(t, r.PID), steps(t, r.PID), steps(t, r.PID)) // one that has to stop the threads again takes more
	if n < 50 {
		t.Fatalf("only %d steps: requests are not counted", n)
	}
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		stride = 1
	}
	killed := 0
	for i := 1; i <= n; i += stride {
		out, err := faultTracer(r.PID, i).CombinedOutput()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL:
			killed++
		case err != nil:
			t.Fatalf("step %d of %d: %v\n%s", i, n, err, out)
		}
		untouched(t, p)
		r.Fine()
	}
	if killed < n/stride*2/3 { // a run may take fewer steps than another
		t.Errorf("killed at %d of %d steps", killed, n/stride)
	}
	t.Logf("killed at %d of %d steps", killed, n)
}

// The tracer is killed at any moment, in the middle of the kernel's work too.
func TestTracerDiesAtAnyTime(t *testing.T) {
	r := run(t, build(t, "hold"))
	p := r.open()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		cmd := faultTracer(r.PID, -1)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if l, err := bufio.NewReader(out).ReadString('\n'); l != "start\n" {
			t.Fatalf("tracer says %q, %v", l, err)
		}
		time.Sleep(time.Duration(rnd.IntN(8000)) * time.Microsecond)
		cmd.Process.Kill()
		cmd.Wait()
		untouched(t, p)
		r.Fine()
	}
}

// The target is killed before each single request: every call ends with an error that says
// so, and nothing waits for ever.
func TestTargetDiesAtEveryStep(t *testing.T) {
	prog := build(t, "live")
	total := 1
	for i := 1; i <= total; i++ {
		cmd := exec.Command(prog, "3")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if l, err := bufio.NewReader(out).ReadString('\n'); l != "ready\n" {
			t.Fatalf("%q, %v", l, err)
		}
		p, err := OpenUnwaited(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		n, before := 0, math.MaxInt // steps, and how many of them before the release
		OnStep = func(string) {
			if n++; n == i && i > 1 {
				cmd.Process.Kill()
			}
		}
		err = whole(p, func() { before = n })
		OnStep = nil
		if i == 1 {
			total = n
		}
		// The kill meets the release, which has nothing to do then, or the write before it: the
		// memory of a process that is about to end can still be written.
		released := n >= i && i >= before
		if (i == 1 || n < i) != (err == nil) && !released || err != nil && !errors.Is(err, ErrNoProcess) && !errors.Is(err, unix.ESRCH) {
			t.Errorf("killed at step %d of %d: %v", i, total, err)
		}
		if i > 1 && n >= i {
			<-p.Exited()
		}
		p.Close()
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Logf("killed at %d steps", total)
}
