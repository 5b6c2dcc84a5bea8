package ptrace

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// build compiles a program of internal/testprog/process.
func build(t testing.TB, name string, flags ...string) string {
	t.Helper()
	return testprog.BuildTalker(t, "../testprog", name, flags...)
}

// running is a test program that speaks lines.
type running struct {
	*testprog.Talker
	t testing.TB
}

// run starts a program and waits until it is ready. It is killed at the test's end.
func run(t testing.TB, path string, args ...string) *running {
	t.Helper()
	return &running{testprog.Talk(t, path, args...), t}
}

// patience bounds every wait of these tests. Nothing measures it.
const patience = 3 * time.Minute

func (r *running) open() *Process {
	r.t.Helper()
	p, err := OpenUnwaited(r.PID) // nothing waits for it before the test's end
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Close() })
	return p
}

func stop(t testing.TB, p *Process) *Stopped {
	t.Helper()
	s, err := p.Stop(&StopOptions{Attempts: 20})
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
func untouched(t testing.TB, p *Process) {
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
