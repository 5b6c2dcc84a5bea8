package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// watches says whether a command watches execs, or has ended.
func watches(s *session) bool {
	select {
	case <-s.done:
		return true
	default:
	}
	fds, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "fd", "*"))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == "anon_inode:[fanotify]" {
			return true
		}
	}
	return false
}

// The tracer is killed at every step of what it does with processes that it meets in their exec: each does all that it does without probes, and none is held up.
func TestExecutableKilledAtEveryStep(t *testing.T) {
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	strike := func(env ...string) (o outcome, steps []string) {
		log := tempFile(t, "log")
		s := &session{t: t}
		s.start(faultCommand(t, log, env, "trace", "-x", b.prog, "--counters", "p:a brief_work", "r:b brief_work"))
		within(t, "a tracer that watches execs", func() bool { return watches(s) })
		b.run(3, 2)
		s.interrupt()
		o = s.wait().outcome
		return o, logged(t, log)
	}
	log := usual(func() []string {
		o, steps := strike()
		if o.code != 0 {
			t.Fatalf("%v", o)
		}
		return steps
	})
	if len(log) < 100 {
		t.Fatalf("only %d steps: they are not counted", len(log))
	}
	struck := 0
	for _, f := range faultsOf(log, 0, 149) {
		o, steps := strike(f.variable())
		if f.killed(t, o, steps) {
			struck++
		}
	}
	if of, _ := b.counted(); len(of) == 0 || struck == 0 {
		t.Errorf("%d processes have counted, the tracer was killed %d times", len(of), struck)
	}
	t.Logf("killed %d times", struck)
}
