package process

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// build compiles a program of internal/testprog/process.
func build(t testing.TB, name string, flags ...string) string {
	t.Helper()
	path, err := cbuild.Build(os.DirFS("../../internal/testprog"), "process", name, flags...)
	if err != nil {
		t.Fatalf("%v (install gcc)", err)
	}
	return path
}

// running is a test program that speaks lines.
type running struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	pid int
}

// run starts a program and waits until it is ready. It is killed at the test's end.
func run(t testing.TB, path string, args ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: exec.Command(path, args...)}
	r.cmd.Stderr = os.Stderr
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.out, r.pid = bufio.NewReader(out), r.cmd.Process.Pid
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		r.cmd.Wait()
	})
	if l := r.line(); l != "ready" {
		t.Fatalf("%s: first line %q, want ready", path, l)
	}
	return r
}

// patience bounds every wait of these tests. Nothing measures it.
const patience = 3 * time.Minute

func (r *running) line() string {
	r.t.Helper()
	type answer struct {
		line string
		err  error
	}
	c := make(chan answer, 1)
	go func() {
		l, err := r.out.ReadString('\n')
		c <- answer{strings.TrimSuffix(l, "\n"), err}
	}()
	select {
	case a := <-c:
		if a.err != nil {
			r.t.Fatalf("process %d has ended: %v: %v", r.pid, a.err, r.cmd.Wait())
		}
		return a.line
	case <-time.After(patience):
		r.t.Fatalf("process %d does not answer", r.pid)
		return ""
	}
}

// ask sends a line and gives the answer.
func (r *running) ask(line string) string {
	r.t.Helper()
	if _, err := io.WriteString(r.in, line+"\n"); err != nil {
		r.t.Fatalf("process %d: %v", r.pid, err)
	}
	return r.line()
}

func (r *running) open() *Proc {
	r.t.Helper()
	p, err := OpenUnwaited(r.pid) // nothing waits for it before the test's end
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Close() })
	return p
}

func stop(t testing.TB, p *Proc) *Stopped {
	t.Helper()
	s, err := p.Stop(&ptrace.StopOptions{Attempts: 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func release(t testing.TB, s *Stopped) {
	t.Helper()
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
}

// untouched checks what must never be left behind in a process: a tracer, a stop.
func untouched(t testing.TB, p *Proc) {
	t.Helper()
	tids, err := p.Tasks()
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		st, err := p.TaskStatus(tid)
		if err != nil {
			continue // it has just ended
		}
		if st.TracerPID != 0 || st.State == "t" || st.State == "T" {
			t.Errorf("thread %d is left in state %s, traced by %d", tid, st.State, st.TracerPID)
		}
	}
}

// reexec runs one test of this test binary in a process of its own.
func reexec(test string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// waitState waits until a process is in a state of proc(5).
func waitState(t *testing.T, pid int, want string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		st, err := procfs.ParseStatus(string(b))
		if err != nil {
			t.Fatal(err)
		}
		if st.State == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d stays in state %s, want %s", pid, st.State, want)
		}
	}
}

func mapsOf(t *testing.T, p *Proc) []procfs.Map {
	t.Helper()
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	return maps
}

// faultStep names the step of a tracer's, in a process of its own, before which it dies; 0: it says how many there are.
const faultStep = "KPROBES_TEST_DIE_AT"
