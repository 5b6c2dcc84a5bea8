package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// A child of fork has the probes of its parent, and when that ends its own.
func TestExecutableForked(t *testing.T) {
	p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "forker")))
	s := everywhere(t, p, "trace", "-x", p.Path, "--counters", "--format", "json", "p:a child_work")
	var kids []int
	p.Ask("fork 2", &kids)
	for _, kid := range kids {
		t.Cleanup(func() { _ = unix.Kill(kid, unix.SIGKILL) })
	}
	p.Kill()
	for _, kid := range kids {
		within(t, "probes of a child whose parent has ended", func() bool {
			o := run(t, command(t, "list", "-p", strconv.Itoa(kid)))
			return o.code == 0 && strings.Contains(o.stdout, "child_work") && heldBy(t, kid, s.cmd.Process.Pid)
		})
	}
	s.interrupt()
	r := s.wait()
	for _, kid := range kids {
		if standing(kid) {
			t.Errorf("child %d has probes after the end: %v", kid, r.outcome)
		}
		if !regexp.MustCompile(fmt.Sprintf(`"process":%d,"comm":"forker","hits":[1-9]`, kid)).MatchString(r.stderr) {
			t.Errorf("child %d has no hits of its own: %v", kid, r.outcome)
		}
	}
	if !strings.Contains(r.stderr, "3 processes of ") || !strings.Contains(r.stderr, "2 that were forked and whose parent has ended") {
		t.Errorf("want 3 processes, 2 of them forked: %v", r.outcome)
	}
}

// heldBy says whether a tracer holds a process.
func heldBy(t *testing.T, pid, tracer int) bool {
	t.Helper()
	p, err := process.Open(pid)
	if err != nil {
		return false
	}
	defer p.Close()
	h, err := p.Holder()
	return err == nil && h != nil && h.PID == tracer
}

// newGroup makes a control group, of any hierarchy, and gives its directory and its path.
func newGroup(t *testing.T) (dir, at string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	at = fmt.Sprintf("/kprobe-x-%d", os.Getpid())
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if !strings.HasPrefix(f[2], "cgroup") || strings.Contains(f[3], "cpuset") { // one of cpuset needs to be told its CPUs
			continue
		}
		dir = f[1] + at
		if err = os.Mkdir(dir, 0o755); err == nil {
			t.Cleanup(func() { _ = os.Remove(dir) })
			return dir, at
		}
	}
	t.Skipf("no control group can be made: %v", err)
	return "", ""
}

// Only processes of the control group count, and those below it.
func TestExecutableCgroup(t *testing.T) {
	dir, at := newGroup(t)
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	in := func(args ...string) *exec.Cmd {
		return exec.Command("/bin/sh", append([]string{"-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, dir, b.prog}, args...)...)
	}
	outside := testprog.Start(t, b.prog)
	inside := testprog.Start(t, "/bin/sh", in().Args[1:]...)
	s := everywhere(t, inside, "trace", "-x", b.prog, "--cgroup", at, "--counters", "p:a brief_work")
	b.run(4, 2)
	right(t, outside, "go 7")
	if out, err := in(tempFile(t, "inside"), "20").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	right(t, inside, "go 30")
	r := s.end()
	r.counted(t, "a", 50, "jump")
	if all, first, _, _ := met(t, r.stderr); all != 2 || first != 1 {
		t.Errorf("%d processes, %d of them first, want 2 and 1: %v", all, first, r.outcome)
	}
	inside.Quit(nil)
}

// Programs in Go, and those with threads, are probed from their first instruction on, and a library's function too.
func TestExecutableKinds(t *testing.T) {
	for _, c := range []struct{ name, probe, count string }{
		{"gowork", "p:a main.Ints", "main.Ints"},
		{"work", "p:a f_push", "f_push"},
	} {
		t.Run(c.name, func(t *testing.T) {
			prog := testprog.Copy(t, testprog.Build(t, c.name))
			p := testprog.Start(t, prog, "2")
			s := everywhere(t, p, "trace", "-x", prog, "--stat", c.probe, "-e", "p:w libc.so.6:write")
			all := right(t, p, "go 10")[c.count]
			for range 3 {
				q := testprog.Start(t, prog, "4")
				all += right(t, q, "go 50")[c.count]
				q.Quit(nil)
			}
			r := s.end()
			r.counted(t, "a", all, "jump")
			if _, first, _, _ := met(t, r.stderr); first != 3 {
				t.Errorf("%d processes are probed from their first instruction on, want 3: %v", first, r.outcome)
			}
			if w := r.totals["w"]; (w.hits > 0) != (c.name == "work") {
				t.Errorf("%d calls of the C library's write: %v", w.hits, r.outcome)
			}
		})
	}
}

// A process that executes the file anew, from its first thread or another, is probed anew; one that executes another program is left alone.
func TestExecutableAgain(t *testing.T) {
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	s := everywhere(t, p, "trace", "-x", b.prog, "--counters", "p:a brief_work", "r:b brief_work")
	for again := range 4 {
		o := outcomeOf(t, exec.Command(b.prog, b.file, "50", "3", strconv.Itoa(again)).Run(), "", "")
		if o.code != 3 {
			t.Errorf("%d times again: %v", again, o)
		}
	}
	r := s.end()
	_, sum := b.counted()
	if sum != 50*(1+2+3+4) {
		t.Errorf("the processes have counted %d", sum)
	}
	r.counted(t, "a", sum, "jump")
	r.counted(t, "b", sum, "jump")
	if all, first, _, _ := met(t, r.stderr); all != 11 || first != 10 {
		t.Errorf("%d programs, %d of them first, want 11 and 10: %v", all, first, r.outcome)
	}
}
