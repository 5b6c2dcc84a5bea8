package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// session is a kprobe trace that runs.
type session struct {
	t      testing.TB
	cmd    *exec.Cmd
	pid    int // of the target
	before *state
	out    locked
	errs   locked
	done   chan struct{}
	err    error
}

// locked is a buffer that is read while it is written.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// trace starts kprobe trace on a process and waits until the probes stand in it.
func trace(t testing.TB, pid int, args ...string) *session {
	t.Helper()
	s := &session{t: t, pid: pid, before: stateOf(t, pid)}
	s.start(command(t, append([]string{"trace", "-p", strconv.Itoa(pid)}, args...)...))
	s.armed()
	return s
}

func (s *session) start(cmd *exec.Cmd) {
	s.t.Helper()
	s.cmd, s.done = cmd, make(chan struct{})
	cmd.Stdout, cmd.Stderr = &s.out, &s.errs
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Process.Kill(); <-s.done })
	go func() {
		s.err = cmd.Wait()
		close(s.done)
	}()
}

// armed waits until every site that the process's memory tells of is patched, and nobody
// stops the process.
func (s *session) armed() {
	s.t.Helper()
	within(s.t, "probes in the process", func() bool {
		select {
		case <-s.done:
			s.t.Fatalf("%s ended early: %v", s.cmd, outcomeOf(s.t, s.err, s.out.String(), s.errs.String()))
		default:
		}
		return standing(s.pid) && field(s.t, s.pid, s.pid, "TracerPid") == "0"
	})
}

// standing says whether the process has patches of the engine's, and all that it is to have.
func standing(pid int) bool {
	p, err := process.Open(pid)
	if err != nil {
		return false
	}
	defer p.Close()
	l, err := process.FindLeftover(p)
	if err != nil || l == nil || len(l.Sites) == 0 {
		return false
	}
	points := 0 // the engine's own probes, which come first, have none
	for _, site := range l.Sites {
		points += len(site.Points)
		have := make([]byte, len(site.Patch))
		if p.ReadMem(site.Addr, have) != nil || !bytes.Equal(have, site.Patch) {
			return false
		}
	}
	return points > 0
}

// total is the summary of an event.
type total struct {
	hits, missed, lost, unwound, active, filtered uint64
	tactic                                        string
}

// summaryLine is a line of the summary.
var summaryLine = regexp.MustCompile(`(?m)^(\S+) hits=(\d+) missed=(\d+) lost=(\d+) tactic=(\S*)(?: filtered=(\d+))?(?: over=\d+)?(?: unwound=(\d+) active=(\d+)(?: returns=\S+)?)?(?: aggregated=\S+)?(?: disabled=".*")?$`)

// result is what a trace has told.
type result struct {
	outcome
	totals map[string]total
	lines  []line
}

// line is a line of a trace: event, the place or way back, and the arguments.
type line struct {
	task, event, place string
	args               map[string]string
}

var traceLine = regexp.MustCompile(`^\s*(.+)-(\d+)\s+\[\d+\]\s+\S+\s+\d+\.\d+: (\S+): \(([^)]*)\)(.*)$`)

// argument is NAME=VALUE, where a value may be a quoted string.
var argument = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\([^)]*\)|\S+)`)

func (s *session) result() result {
	s.t.Helper()
	r := result{outcome: outcomeOf(s.t, s.err, s.out.String(), s.errs.String())}
	r.totals = totals(r.stderr)
	r.lines = linesOf(r.stdout)
	return r
}

// linesOf parses the lines of a trace.
func linesOf(text string) (ls []line) {
	for l := range strings.Lines(text) {
		if m := traceLine.FindStringSubmatch(strings.TrimSuffix(l, "\n")); m != nil {
			ls = append(ls, parseLine(m))
		}
	}
	return ls
}

func parseLine(m []string) line {
	l := line{task: m[2], event: m[3], place: m[4], args: map[string]string{}}
	for _, a := range argument.FindAllStringSubmatch(m[5], -1) {
		l.args[a[1]] = a[2]
	}
	return l
}

func totals(stderr string) map[string]total {
	out := map[string]total{}
	for _, m := range summaryLine.FindAllStringSubmatch(stderr, -1) {
		n := func(i int) uint64 {
			v, _ := strconv.ParseUint(m[i], 10, 64)
			return v
		}
		out[m[1]] = total{n(2), n(3), n(4), n(7), n(8), n(6), m[5]}
	}
	return out
}

// wait waits until the trace has ended by itself.
func (s *session) wait() result {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatalf("%s does not end: %s", s.cmd, s.errs.String())
	}
	return s.result()
}

// interrupt sends Ctrl-C.
func (s *session) interrupt() { _ = s.cmd.Process.Signal(unix.SIGINT) }

// end presses Ctrl-C; the trace must end well, and the process be as it was. What was
// recorded must be what was counted.
func (s *session) end() result {
	s.t.Helper()
	s.interrupt()
	r := s.wait()
	if r.code != 0 {
		s.t.Fatalf("%s: %v", s.cmd, r.outcome)
	}
	s.before.same(s.t)
	return r
}

// whole checks that every record that was not lost was printed.
func (r result) whole(t testing.TB) {
	t.Helper()
	n := map[string]uint64{}
	for _, l := range r.lines {
		n[l.event]++
	}
	for e, c := range r.totals {
		if c.hits != n[e]+c.lost+c.filtered {
			t.Errorf("%s: hits %d, printed %d, lost %d, filtered %d", e, c.hits, n[e], c.lost, c.filtered)
		}
	}
}

// counted checks an event's hits.
func (r result) counted(t testing.TB, event string, hits uint64, tactic string) {
	t.Helper()
	c, ok := r.totals[event]
	if !ok {
		t.Fatalf("no summary of %s: %v", event, r.outcome)
	}
	if c.hits != hits {
		t.Errorf("%s: %d hits, the program counted %d (%+v)", event, c.hits, hits, c)
	}
	if c.missed != 0 {
		t.Errorf("%s: %d missed", event, c.missed)
	}
	if tactic != "" && c.tactic != tactic {
		t.Errorf("%s: tactic %s, not %s", event, c.tactic, tactic)
	}
}

// program starts a test program.
func program(t testing.TB, name string, args ...string) *testprog.Proc {
	t.Helper()
	return testprog.Start(t, testprog.Build(t, name), args...)
}

// right asks a program for its counts: it must not have found anything wrong.
func right(t testing.TB, p *testprog.Proc, command string) map[string]uint64 {
	t.Helper()
	n := p.Counts(command)
	if n["bad"] != 0 {
		t.Errorf("%s: %d wrong results after %q: %v", p.Path, n["bad"], command, n)
	}
	return n
}

// tempFile names a file of the test's own.
func tempFile(t testing.TB, name string) string { return t.TempDir() + string(os.PathSeparator) + name }
