package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
	tracing "kprobes.dev/kprobes/trace"
)

// lookProbes read what the program goloads has pointers to, and what is nowhere, before its runtime has signal handlers and after.
var lookProbes = []string{
	"p:look main.Look v=+0(%ax):u64 s=+0(%ax):string w=+8(%ax):u64",
	"p:early runtime.schedinit v=+0x7000000000000000(%sp):u64 s=+0(+0x7000000000000000(%sp)):string",
	"p:tramp runtime.minit v=+0x7000000000000000(%sp):u64 s=+0(+0x7000000000000000(%sp)):string",
}

// looking is the program goloads, which somebody else starts.
type looking struct {
	t       testing.TB
	in, out *os.File // its own ends
	to      *os.File
	lines   *bufio.Scanner
}

func newLooking(t testing.TB) *looking {
	t.Helper()
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := &looking{t: t, in: in, out: out, to: to, lines: bufio.NewScanner(from)}
	t.Cleanup(func() { to.Close(); from.Close() }) // the program ends at the end of its input
	return l
}

// started is called when the program has its ends, and waits until it is ready.
func (l *looking) started() {
	l.t.Helper()
	l.in.Close()
	l.out.Close()
	if !l.lines.Scan() || l.lines.Text() != "ready" {
		l.t.Fatalf("%q, want ready", l.lines.Text())
	}
}

func (l *looking) send(command string) {
	l.t.Helper()
	if _, err := fmt.Fprintln(l.to, command); err != nil {
		l.t.Fatal(err)
	}
}

// looked is an answer: calls of the program's function, and how many were given a bad pointer.
type looked struct{ PID, Calls, Faults, Bad int }

// answer reads an answer, which must have found nothing wrong.
func (l *looking) answer() (n looked) {
	l.t.Helper()
	if !l.lines.Scan() {
		l.t.Fatal("the program has ended")
	}
	if err := json.Unmarshal(l.lines.Bytes(), &n); err != nil || n.Bad != 0 {
		l.t.Errorf("%s: %v", l.lines.Text(), err)
	}
	return n
}

// calls has the program call its function, with bad pointers too.
func (l *looking) calls(n int) looked {
	l.t.Helper()
	l.send(fmt.Sprint("go ", n))
	return l.answer()
}

// TestStartedGoAsksNothing: a program without C that is probed from its start asks the kernel before each load until its
// runtime has signal handlers and the engine has seen that, and nothing from then on. One with C, or that sets actions of
// signals itself, goes on asking once a record. Bad pointers harm nobody: before, after, and when the resident handler has
// been replaced.
func TestStartedGoAsksNothing(t *testing.T) {
	for name, flags := range map[string][]string{
		"static": {"CGO_ENABLED=0"}, "pie": {"CGO_ENABLED=0", "-buildmode=pie"}, "cgo": nil, "acts": {"CGO_ENABLED=0", "-tags=acts"},
	} {
		t.Run(name, func(t *testing.T) {
			startedGo(t, testprog.Build(t, "goloads", flags...), name == "cgo" || name == "acts")
		})
	}
}

func startedGo(t *testing.T, path string, asks bool) {
	l := newLooking(t)
	p, held, err := process.Start(&process.Command{Path: path, Env: append(os.Environ(), "GODEBUG=asyncpreemptoff=1"), Stdin: l.in, Stdout: l.out, Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := process.Attach(p, &process.TargetOptions{Stopped: held})
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	evs := add(t, core, "", lookProbes...)
	if err := tg.Run(); err != nil {
		t.Fatal(err)
	}
	l.started()
	const calls, rounds = 160, 10
	records, faults := 0, 0
	did := func(n looked) { records, faults = records+n.Calls, faults+n.Faults }
	round := func() map[uint64]int {
		c, err := testprog.SystemCalls(p.PID(), func() { l.send(fmt.Sprint("good ", calls)) })
		if err != nil {
			t.Fatal(err)
		}
		did(l.answer())
		return c
	}
	plain := map[uint64]int{unix.SYS_WRITE: 1} // the answer
	if c := round(); c[unix.SYS_RT_SIGPROCMASK] < calls {
		t.Errorf("before the program has begun: system calls %v of %d records", c, calls)
	}
	did(l.calls(calls))
	if asks {
		plain[unix.SYS_RT_SIGPROCMASK], plain[unix.SYS_RT_SIGACTION] = calls, calls
	}
	var seen []string
	good := false // a stop may fail, and the runtime may need a call now and then: one round is enough
	for range rounds {
		if err := core.Sync(); err != nil {
			t.Fatal(err)
		}
		c := round()
		seen = append(seen, fmt.Sprint(c))
		good = good || maps.Equal(testprog.WithoutRuntime(c, calls), plain)
		did(l.calls(calls))
	}
	if !good {
		t.Errorf("system calls in rounds of %d records %s, want %v", calls, seen, plain)
	}
	l.send(fmt.Sprint("own ", calls))
	did(l.answer())
	got := 0
	err = core.Close(func(h *tracing.Hit) {
		vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "")
		if err != nil {
			t.Fatal(err)
		}
		if vs[1].Fault && h.Event.Name == "look" {
			got++
		}
	})
	if err != nil {
		t.Error(err)
	}
	if c := core.Counts(evs[0]); c.Hits != uint64(records) || got != faults {
		t.Errorf("%+v, %d faults; the program counts %d, %d", c, got, records, faults)
	}
	for _, e := range evs[1:] {
		if core.Counts(e).Hits == 0 {
			t.Errorf("%s: no hit", e.Name)
		}
	}
	intact(t, p.PID())
	if left, err := leftover(p.PID()); left != nil || err != nil {
		t.Errorf("left: %+v, %v", left, err)
	}
	l.calls(40)
	l.send("quit")
	if st, err := p.Wait(); err != nil || !st.Success() {
		t.Errorf("%v, %v", st, err)
	}
}

// TestStartedGoRecovers: a fault in an instruction that a probe has moved is the program's own, at the very start too.
func TestStartedGoRecovers(t *testing.T) {
	l := newLooking(t)
	p, held, err := process.Start(&process.Command{Path: testprog.Build(t, "goloads", "CGO_ENABLED=0"), Stdin: l.in, Stdout: l.out, Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := process.Attach(p, &process.TargetOptions{Stopped: held})
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	deref, err := tg.Space().Resolve(symbol.Place{Sym: "main.Deref"})
	if err != nil {
		t.Fatal(err)
	}
	var evs []*kprobes.Event
	for off := range deref.Func.Size { // one at each instruction that takes a probe
		d, err := event.Parse(fmt.Sprintf("p main.Deref+%d", off))
		if err != nil {
			t.Fatal(err)
		}
		if more, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Late: true, Tactic: arch.TacticJump}); err == nil {
			evs = append(evs, more...)
		}
	}
	if err := tg.Run(); err != nil {
		t.Fatal(err)
	}
	synced := false
	within(t, "the first thread goes on", func() bool {
		core.Poll(func(*tracing.Hit) {})
		if core.Stats().Pending {
			if err := core.Sync(); err != nil {
				t.Fatal(err)
			}
			synced = true
		}
		return synced && !core.Stats().Pending
	})
	l.started()
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	hits := uint64(0)
	for _, e := range evs {
		hits += core.Counts(e).Hits
	}
	if hits == 0 {
		t.Errorf("no hit of %d probes", len(evs))
	}
	intact(t, p.PID())
	l.send("quit")
	if st, err := p.Wait(); err != nil || !st.Success() {
		t.Errorf("%v, %v", st, err)
	}
}

// TestBeginKilledAtEveryStep: the command is killed before each step of what it does when a Go program that it has
// started has begun. Bad pointers harm nobody then, before and after kprobe detach.
func TestBeginKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	path := testprog.Build(t, "goloads", "CGO_ENABLED=0")
	steps := func(int) []string { _, log := beginAt(t, path, nil); return log }
	strike := func(_ int, at fault) bool { met, _ := beginAt(t, path, &at); return met }
	log := usual(func() []string { return steps(0) })
	faults := slices.DeleteFunc(faultsOf(log, 0, 13), func(f fault) bool { return !isBegin(f.text) })
	if len(faults) < 3 {
		t.Fatalf("%d steps: %q", len(faults), log)
	}
	strikes{steps, strike}.each(t, faults)
}

func isBegin(step string) bool { return strings.Contains(step, "(*Target).Begin") }

// endsAsking is the step after which records ask nothing.
func endsAsking(step string) bool {
	return strings.Contains(step, "(*controlBlock).put < target/process.(*Target).begin <")
}

// traced says whether a process's first thread has a tracer.
func traced(t *testing.T, pid int) bool {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	st, err := procfs.ParseStatus(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return st.TracerPID != 0
}

// beginAt starts the program by the command, which is killed at a step, if it comes there, and else when the program has
// begun. It gives the steps.
func beginAt(t *testing.T, path string, at *fault) (met bool, log []string) {
	l := newLooking(t)
	file := tempFile(t, "log")
	var env []string
	if at != nil {
		env = append(env, at.variable())
	}
	args := append(append([]string{"trace", "--alone", "-o", tempFile(t, "lines")}, lookProbes...), "--", path)
	cmd := faultCommand(t, file, env, args...)
	cmd.Stdin, cmd.Stdout = l.in, l.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	l.started()
	pid := l.calls(40).PID
	within(t, "the program begins", func() bool {
		return len(ended) > 0 || slices.ContainsFunc(logged(t, file), endsAsking) && !traced(t, pid)
	})
	l.calls(40)
	if met = len(ended) > 0; !met {
		_ = cmd.Process.Kill()
	}
	<-ended
	l.calls(40)
	detach(t, pid)
	l.calls(40)
	intact(t, pid)
	return met, logged(t, file)
}
