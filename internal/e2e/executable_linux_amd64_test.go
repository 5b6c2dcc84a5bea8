package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// briefs are processes of the program brief, which note in a file what they have called.
type briefs struct {
	t    *testing.T
	prog string
	file string
}

func newBriefs(t *testing.T, prog string) *briefs {
	return &briefs{t: t, prog: prog, file: tempFile(t, "counts")}
}

// run runs n processes, some at a time, and checks that each ends as it does without probes.
func (b *briefs) run(n, at int) {
	b.t.Helper()
	var all sync.WaitGroup
	for first := range at {
		all.Go(func() {
			for i := first; i < n; i += at {
				out, err := exec.Command(b.prog, b.file, strconv.Itoa(100+i), strconv.Itoa(i%5)).CombinedOutput()
				if o := outcomeOf(b.t, err, string(out), ""); o.code != i%5 || o.stdout != "" {
					b.t.Errorf("process %d of %s: want status %d: %v", i, b.prog, i%5, o)
				}
			}
		})
	}
	all.Wait()
}

// counted is what the processes have counted, by their ids, and the sum.
func (b *briefs) counted(files ...string) (of map[int]uint64, sum uint64) {
	b.t.Helper()
	of = map[int]uint64{}
	for _, name := range append(files, b.file) {
		f, err := os.Open(name)
		if err != nil {
			b.t.Fatal(err)
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			text, ok := strings.CutPrefix(s.Text(), "#{")
			if !ok {
				continue
			}
			var n struct {
				PID   int
				Calls uint64 `json:"brief_work"`
				Bad   uint64
			}
			if err := json.Unmarshal([]byte("{"+text), &n); err != nil || n.Bad != 0 {
				b.t.Errorf("%s: %q: %v", name, text, err)
			}
			of[n.PID] += n.Calls
			sum += n.Calls
		}
	}
	return of, sum
}

// everywhere starts a command on all processes of a program, and waits until it stands in one that runs: execs are watched then.
func everywhere(t *testing.T, runs *testprog.Proc, args ...string) *session {
	t.Helper()
	s := &session{t: t, pid: runs.PID, before: stateOf(t, runs.PID)}
	s.start(command(t, args...))
	s.armed()
	return s
}

// metLine is what the summary says of how processes were met.
var metLine = regexp.MustCompile(`kprobe: (\d+) processes of \S+: (\d+) probed before their first instruction, (\d+) that ran already, (\d+) that came and were probed later`)

func met(t *testing.T, stderr string) (all, first, ran, later int) {
	t.Helper()
	m := metLine.FindStringSubmatch(stderr)
	if m == nil {
		t.Fatalf("the summary does not say how processes were met: %s", stderr)
	}
	for i, p := range []*int{&all, &first, &ran, &later} {
		*p, _ = strconv.Atoi(m[i+1])
	}
	return all, first, ran, later
}

// Every call of every process counts, of one that runs and of those that come, from their first instruction on; the sums are those of the processes.
func TestExecutable(t *testing.T) {
	const n = 40
	for _, flags := range [][]string{nil, {"-static"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief", flags...)))
			p := testprog.Start(t, b.prog)
			s := everywhere(t, p, "trace", "-x", b.prog, "--format", "json", "-o", os.DevNull, "p:a brief_work n=$arg1", "r:b brief_work $retval")
			b.run(n, 4)
			right(t, p, "go 50")
			r := s.end()
			of, sum := b.counted()
			of[p.PID] = 50
			all, first, ran, later := met(t, r.stderr)
			if all != n+1 || ran != 1 || first+later != n {
				t.Errorf("%d processes, %d of them first, %d that ran, %d later: there were %d and one that ran", all, first, ran, later, n)
			}
			hits := map[string]uint64{}
			for line := range strings.Lines(r.stderr) {
				var l struct {
					Process int
					Event   string
					Hits    uint64
					Events  map[string]uint64
				}
				if json.Unmarshal([]byte(line), &l) != nil {
					continue
				}
				if hits[l.Event] += l.Hits; l.Process != 0 && (l.Events["kprobes/a"] != of[l.Process] || l.Events["kprobes/b"] != of[l.Process]) {
					t.Errorf("process %d: %v, and it has counted %d", l.Process, l.Events, of[l.Process])
				}
			}
			if hits["kprobes/a"] != sum+50 || hits["kprobes/b"] != sum+50 || hits[""] != 2*(sum+50) {
				t.Errorf("hits %v, the processes have counted %d: %v", hits, sum+50, r.outcome)
			}
		})
	}
}

// Lines of all processes are whole, and a histogram counts them together.
func TestExecutableVerbs(t *testing.T) {
	const n = 10
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	for _, verb := range []string{"trace", "stat", "hist"} {
		args := []string{verb, "-x", b.prog, "p:a brief_work n=$arg1:u64"}
		if verb == "hist" {
			args = append(args, "keys=n")
		}
		_ = os.Remove(b.file)
		s := everywhere(t, p, args...)
		b.run(n, 2)
		r := s.end()
		_, sum := b.counted()
		r.counted(t, "a", sum, "jump")
		switch verb {
		case "trace":
			r.whole(t)
			if l := r.lines[0]; l.args["n"] != "0" || !strings.HasPrefix(l.place, "brief_work+0x0/") {
				t.Errorf("%+v: want the first call", l)
			}
		case "hist":
			if !strings.Contains(r.stdout, fmt.Sprintf("Hits: %d\n", sum)) {
				t.Errorf("want %d hits: %v", sum, r.outcome)
			}
		}
	}
}

// What takes the file's place, and scripts whose interpreter it is, count; other programs of the directory run as ever.
func TestExecutableReplaced(t *testing.T) {
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	other := testprog.Copy(t, testprog.Build(t, "brief"))
	script := b.prog + "-script"
	for _, err := range []error{
		os.WriteFile(script, []byte("#!"+b.prog+"\n"), 0o755), os.Rename(other, b.prog+"-new"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	p := testprog.Start(t, b.prog)
	s := everywhere(t, p, "trace", "-x", b.prog, "--counters", "p:a brief_work")
	if out, err := exec.Command(b.prog+"-new", tempFile(t, "other")).CombinedOutput(); err != nil {
		t.Errorf("another program of the directory: %v: %s", err, out)
	}
	b.run(3, 1)
	if err := os.Rename(b.prog+"-new", b.prog); err != nil {
		t.Fatal(err)
	}
	within(t, "the other file is known", func() bool { return strings.Contains(s.errs.String(), "is another file now") })
	b.run(3, 1)
	if out, err := exec.Command(script).CombinedOutput(); err != nil {
		t.Errorf("script: %v: %s", err, out)
	}
	r := s.end()
	_, sum := b.counted(script)
	r.counted(t, "a", sum, "jump")
	if all, _, _, _ := met(t, r.stderr); all != 8 {
		t.Errorf("%d processes, want 8: %v", all, r.outcome)
	}
}

// A tracer that is killed in the middle harms no process, holds none up, and the next one takes out what it has left.
func TestExecutableKilled(t *testing.T) {
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	killed := everywhere(t, p, "trace", "-x", b.prog, "--counters", "p:a brief_work", "r:b brief_work")
	n, at := 40, 4
	if long {
		n = 2000
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.run(n, at)
	}()
	within(t, "a process that has ended", func() bool { _, err := os.Stat(b.file); return err == nil })
	_ = killed.cmd.Process.Kill()
	<-killed.done
	<-done
	if of, _ := b.counted(); len(of) != n {
		t.Errorf("%d processes have noted their counts, there were %d", len(of), n)
	}
	right(t, p, "go 10")
	s := &session{t: t, pid: p.PID}
	s.start(command(t, "trace", "-x", b.prog, "--counters", "p:c brief_work"))
	within(t, "the probes of the second tracer", func() bool {
		o := run(t, command(t, "list", "-p", pid(p)))
		return strings.Count(o.stdout, "brief_work") == 1 && o.code == 0
	})
	before, _ := b.counted()
	b.run(10, 2)
	after, _ := b.counted()
	var sum uint64
	for pid, n := range after {
		sum += n - before[pid]
	}
	right(t, p, "go 10")
	s.interrupt()
	r := s.wait()
	r.counted(t, "c", sum+10, "jump")
	killed.before.same(t)
}

// Two thousand short processes a minute, and a tracer that is killed and started anew among them: those of the second count exactly.
func TestExecutableMany(t *testing.T) {
	if !long {
		t.Skip("KPROBES_E2E_LONG is not set: it takes minutes")
	}
	const n = 2000
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	s := everywhere(t, p, "stat", "-x", b.prog, "p:a brief_work n=$arg1:u64")
	begun := time.Now()
	b.run(n, 4)
	took := time.Since(begun)
	r := s.end()
	_, sum := b.counted()
	r.counted(t, "a", sum, "jump")
	all, first, _, later := met(t, r.stderr)
	if all != n+1 {
		t.Errorf("%d processes, want %d: %v", all, n+1, r.outcome)
	}
	t.Logf("%d processes in %v, %d from their first instruction on, %d later; the tracer took %v of CPU time each", n, took, first, later,
		(s.cmd.ProcessState.UserTime()+s.cmd.ProcessState.SystemTime())/n)
}

// A user without privileges sees the processes that run, and those that come some time after they have begun.
func TestExecutableUnprivileged(t *testing.T) {
	kprobe := asNobody(t)
	prog := public(t, testprog.Build(t, "brief"))
	start := func() *testprog.Proc {
		return testprog.Start(t, "/usr/bin/setpriv", "--reuid", strconv.Itoa(nobody), "--regid", strconv.Itoa(nobody), "--clear-groups", prog)
	}
	p := start()
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(kprobe("trace", "-x", prog, "--counters", "p:a brief_work"))
	s.armed()
	right(t, p, "go 20")
	q := start()
	within(t, "probes in the process that came", func() bool { return standing(q.PID) && field(t, q.PID, q.PID, "TracerPid") == "0" })
	right(t, q, "go 30")
	r := s.end()
	r.counted(t, "a", 50, "jump")
	if !strings.Contains(r.stderr, "by root alone, or with CAP_SYS_ADMIN and CAP_SYS_PTRACE") {
		t.Errorf("it does not say what is missing: %v", r.outcome)
	}
	if all, first, ran, later := met(t, r.stderr); all != 2 || first != 0 || ran != 1 || later != 1 {
		t.Errorf("%d processes, %d first, %d that ran, %d later: %v", all, first, ran, later, r.outcome)
	}
}

// Wrong usage is refused before a process is touched.
func TestExecutableUsage(t *testing.T) {
	prog := testprog.Build(t, "brief")
	script := tempFile(t, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code  int
		words string
		args  []string
	}{
		{1, "it is a script: give the program that runs it", []string{"-x", script, "p:a f"}},
		{1, "no such file or directory", []string{"-x", script + "-not", "p:a f"}},
		{1, "no directory of PATH has it", []string{"-x", "kprobe-no-such-program", "p:a f"}},
		{2, "-p, -k, --guest and -x exclude each other", []string{"-x", prog, "-p", "1", "p:a f"}},
		{2, "give its file with -x FILE", []string{"--cgroup", "/", "p:a f", "--", "true"}},
		{2, "give its whole path", []string{"-x", prog, "--cgroup", "system.slice", "p:a f"}},
		{2, "hexadecimal digits", []string{"-x", prog, "--container", "web", "p:a f"}},
		{2, "-R is for one process", []string{"-x", prog, "p:a brief_work", "-R", "traceoff"}},
	} {
		fails(t, command(t, append([]string{"trace"}, c.args...)...), c.code, c.words)
	}
	p := testprog.Start(t, testprog.Copy(t, prog))
	if o := fails(t, command(t, "trace", "-x", p.Path, "p:a brief_wrk"), 1, `did you mean "brief_work"?`); strings.Count(o.stderr, "\n") > 3 || strings.Contains(o.stderr, "hits=") {
		t.Errorf("want the error once, with the definition: %v", o)
	}
	fails(t, command(t, "hist", "-x", prog, "p:a brief_work n=$arg1", "keys=n.sym"), 2, "are for one process")
}
