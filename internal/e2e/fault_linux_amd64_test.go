package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// scenario is a target and what is done to it while the tracer is struck at its steps.
type scenario struct {
	name    string
	prog    func(t *testing.T) *testprog.Proc
	trace   []string
	commits bool // it is struck from the first commit on: what it does before is as in the first scenario
	every   int  // of how many steps that a short run chooses it tries one
	runs    bool // the program works all the time
}

// scenarios: what the others do before they arm is what the first does.
var scenarios = []scenario{
	{
		name: "jump", prog: leafProgram, runs: true, every: 97,
		trace: []string{"--duration", "1ms", "p:a leaf $comm +0(%sp):u64", "r:b calling $retval", "r:c holding $arg1"},
	},
	{
		name: "boost", prog: leafProgram, runs: true, commits: true, every: 101,
		trace: []string{"--duration", "1ms", "--tactic", "boost", "p:a leaf"},
	},
	{
		name: "step", prog: leafProgram, runs: true, commits: true, every: 127,
		trace: []string{"--duration", "1ms", "--tactic", "step", "p:a leaf", "r:c holding"},
	},
	{
		name: "handlers", prog: segvProgram, commits: true, every: 113,
		trace: []string{"--duration", "1ms", "p:a touch v=+0(%di):u8", "p:b divide", "r:c nilread $retval"},
	},
	{
		name: "go", prog: goProgram, every: 101,
		trace: []string{"--duration", "1ms", "p:a main.Ints $arg1", "r:b main.Deep $retval", "r:c main.(*Tree).Sum $arg1"},
	},
}

// leafProgram works all the time, and gets less of the processors than the tests. It gets so much that a busy machine lets
// its thread arrive where it is stopped.
func leafProgram(t *testing.T) *testprog.Proc {
	return testprog.Start(t, "/usr/bin/nice", "-n", "4", testprog.Build(t, "leaf"), "1")
}

func segvProgram(t *testing.T) *testprog.Proc { return program(t, "segv") }
func goProgram(t *testing.T) *testprog.Proc   { return program(t, "gowork", "2") }

// faultCommand is the command that is struck before a step. It logs its steps to a file.
func faultCommand(t testing.TB, log string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := faulty()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(append(os.Environ(), "KPROBES_FAULT_LOG="+log), env...)
	return cmd
}

func (sc *scenario) command(t testing.TB, pid int, log string, env ...string) *exec.Cmd {
	args := []string{"trace", "-p", strconv.Itoa(pid), "--alone", "--stat", "--buffer-size", "65536"}
	return faultCommand(t, log, env, append(args, sc.trace...)...)
}

// steps runs the scenario undisturbed.
func (sc *scenario) steps(t testing.TB, pid int) []string {
	t.Helper()
	return stepsOf(t, func(log string) *exec.Cmd { return sc.command(t, pid, log) })
}

// faults chooses of the steps of undisturbed runs.
func (sc *scenario) faults(steps func() []string) []fault {
	log, from := usual(steps), 0
	if sc.commits {
		from = slices.IndexFunc(log, func(s string) bool { return strings.Contains(s, "(*Target).Commit") })
	}
	return faultsOf(log, from, sc.every)
}

// calmly runs a command until the machine is not too busy for it.
func calmly(t testing.TB, cmd func() *exec.Cmd) (o outcome) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		if o = run(t, cmd()); o.code == 0 || !overloaded(o) || time.Now().After(end) {
			return o
		}
	}
}

// work makes the program work, and check itself.
func (sc *scenario) work(t testing.TB, p *testprog.Proc) {
	t.Helper()
	if !sc.runs {
		right(t, p, "go 20")
		return
	}
	before := right(t, p, "count")["rounds"]
	within(t, "another round", func() bool { return right(t, p, "count")["rounds"] > before })
}

// each calls f for the steps of a scenario, from two goroutines with a target each. f says whether
// the tracer came to the step.
func (sc *scenario) each(t *testing.T, f func(t testing.TB, p *testprog.Proc, before *state, at fault) bool) {
	var ps [2]*testprog.Proc
	var before [2]*state
	for i := range ps {
		ps[i] = sc.prog(t)
		sc.work(t, ps[i]) // all of its threads are there
		before[i] = stateOf(t, ps[i].PID)
	}
	steps := func(i int) []string {
		defer before[i].same(t)
		return sc.steps(t, ps[i].PID)
	}
	strikes{steps, func(i int, at fault) bool { return f(t, ps[i], before[i], at) }}.each(t, sc.faults(func() []string { return steps(0) }))
}

// The tracer is killed before the steps of attach, arm, run and disarm: the program works on and
// computes right, and kprobe detach takes out what is left.
func TestTracerKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			sc.each(t, func(t testing.TB, p *testprog.Proc, before *state, at fault) bool {
				log := tempFile(t, "log")
				o := run(t, sc.command(t, p.PID, log, at.variable()))
				if o.signal != unix.SIGKILL && o.code != 0 && !overloaded(o) {
					t.Errorf("%v", o)
				}
				before.free(t)
				sc.work(t, p)
				detach(t, p.PID)
				before.same(t)
				sc.work(t, p)
				return at.killed(t, o, logged(t, log))
			})
		})
	}
}

// overloaded says whether the tracer gave up because the machine did not let a thread arrive in
// time: it must then have left everything as it was, like one that was killed.
func overloaded(o outcome) bool { return strings.Contains(o.stderr, "cannot be stopped within") }

func detach(t testing.TB, pid int) {
	t.Helper()
	if o := calmly(t, func() *exec.Cmd { return command(t, "detach", "-p", strconv.Itoa(pid)) }); o.code != 0 {
		t.Errorf("detach: %v", o)
	}
}

// Ctrl-C, at any step: the tracer itself takes out everything.
func TestInterruptedAtEveryStep(t *testing.T) {
	t.Parallel()
	sc := scenarios[0]
	sc.every = 197
	sc.each(t, func(t testing.TB, p *testprog.Proc, before *state, at fault) bool {
		log := tempFile(t, "log")
		o := run(t, sc.command(t, p.PID, log, at.variable(), "KPROBES_FAULT_SIGNAL=2"))
		if (o.code != 0 || len(totals(o.stderr)) != 3) && !overloaded(o) {
			t.Errorf("%v", o)
		}
		if overloaded(o) {
			detach(t, p.PID)
		}
		before.same(t)
		sc.work(t, p)
		return at.passed(logged(t, log))
	})
}

// The process is killed at any step: the tracer ends, and says what it had or why it had
// nothing.
func TestTargetKilledAtEveryStep(t *testing.T) {
	sc := scenarios[0]
	sc.every = 97
	steps := func(int) []string { return sc.steps(t, sc.prog(t).PID) }
	strike := func(_ int, at fault) bool {
		p := sc.prog(t)
		log := tempFile(t, "log")
		o := run(t, sc.command(t, p.PID, log, at.variable(), fmt.Sprintf("KPROBES_FAULT_TARGET=%d", p.PID)))
		switch {
		case o.code == 0 && len(totals(o.stderr)) == 3:
		case o.code == 1 && (strings.Contains(o.stderr, "no such process") || overloaded(o)):
		default:
			t.Errorf("%v", o)
		}
		struck := at.passed(logged(t, log))
		if struck && p.Wait().Success() {
			t.Error("the process has not been killed")
		}
		return struck
	}
	strikes{steps, strike}.each(t, sc.faults(func() []string { return steps(0) }))
}

// kprobe detach is killed at its steps: what it has not done the next one does.
func TestDetachKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"boost", "go"} {
		t.Run(name, func(t *testing.T) {
			i := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == name })
			sc := scenarios[i]
			probes := sc.trace[2:]
			var ps [2]*testprog.Proc
			var before [2]*state
			for i := range ps {
				ps[i] = sc.prog(t)
				sc.work(t, ps[i])
				before[i] = stateOf(t, ps[i].PID)
			}
			steps := func(i int) []string {
				leave(t, ps[i].PID, probes)
				return stepsOfDetach(t, ps[i].PID)
			}
			strike := func(i int, at fault) bool {
				p := ps[i]
				leave(t, p.PID, probes)
				struck := strikeDetach(t, p.PID, at)
				before[i].free(t)
				sc.work(t, p)
				detach(t, p.PID)
				before[i].same(t)
				sc.work(t, p)
				return struck
			}
			strikes{steps, strike}.each(t, faultsOf(usual(func() []string { return steps(0) }), 0, 37))
		})
	}
}

// leave probes a process by a tracer that is then killed.
func leave(t testing.TB, pid int, probes []string) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		var errs locked
		cmd := command(t, append([]string{"trace", "-p", strconv.Itoa(pid), "--alone", "--stat", "--buffer-size", "65536"}, probes...)...)
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		var o outcome
		early := false
		within(t, "probes in the process", func() bool {
			select {
			case err := <-ended:
				early, o = true, outcomeOf(t, err, "", errs.String())
				return true
			default:
				return standing(pid) && field(t, pid, pid, "TracerPid") == "0"
			}
		})
		if !early {
			_ = cmd.Process.Kill()
			<-ended
			return
		}
		if !overloaded(o) || time.Now().After(end) {
			t.Fatalf("the tracer ended early: %v", o)
		}
	}
}

// leftover is what a tracer has left in a process; nil: nothing.
func leftover(pid int) (*process.Leftover, error) {
	p, err := process.Open(pid)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return process.FindLeftover(p)
}

// The tracer is killed at any moment, in the middle of the kernel's work too.
func TestTracerKilledAtAnyTime(t *testing.T) {
	sc := scenarios[1]
	p := sc.prog(t)
	sc.work(t, p)
	before := stateOf(t, p.PID)
	rnd := rand.New(rand.NewPCG(3, 4))
	tries := 25
	if long {
		tries = 1000
	}
	start := time.Now()
	run(t, sc.command(t, p.PID, tempFile(t, "log")))
	whole, left := time.Since(start), 0 // what it takes on this machine, and kills that left something
	for i := 0; i < tries || left == 0 && time.Since(start) < patience; i++ {
		most := whole
		if i < tries {
			most = min(whole, time.Second)
		}
		cmd := sc.command(t, p.PID, tempFile(t, "log"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(most))))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if l, err := leftover(p.PID); err == nil && l != nil {
			left++
		}
		before.free(t)
		sc.work(t, p)
		detach(t, p.PID)
		before.same(t)
	}
	if left == 0 {
		t.Error("no kill has left anything")
	}
}
