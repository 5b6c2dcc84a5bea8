package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// fault is a step of the command before which it is struck: a request of ptrace, or a write into a
// process (internal/ptrace, kprobes_fault).
type fault struct {
	text    string  // the request and the functions that led to it
	nth     int     // of the steps of this text, from 1
	instead []fault // those that follow in a run, for a choice: no run may come to the step again
}

func (f fault) String() string { return fmt.Sprintf("no. %d of %s", f.nth, f.text) }

func (f fault) same(g fault) bool { return f.text == g.text && f.nth == g.nth }

// variable tells the command where it is struck.
func (f fault) variable() string { return fmt.Sprintf("KPROBES_FAULT_STEP=%d %s", f.nth, f.text) }

// among counts the steps of the fault's text.
func (f fault) among(steps []string) (n int) {
	for _, s := range steps {
		if s == f.text {
			n++
		}
	}
	return n
}

// passed says whether a command came past the step.
func (f fault) passed(steps []string) bool { return f.among(steps) >= f.nth }

// killed says whether a command that is killed at the step has been. It must have been if it came there.
func (f fault) killed(t testing.TB, o outcome, steps []string) bool {
	t.Helper()
	killed := o.signal == unix.SIGKILL
	if n := f.among(steps); killed && n != f.nth-1 || !killed && n >= f.nth {
		t.Errorf("killed: %t; it has taken %d such steps: %v", killed, n, o)
	}
	return killed
}

// faultsOf chooses from the steps of runs that nobody disturbed, from an index on. A long run
// takes all. A short run takes, of each text, the first step, the second and the last, and of these
// one of so many, or one of the next few instead; it leaves out requests that only read, since the process is the same before and
// after them.
func faultsOf(log []string, from, every int) (out []fault) {
	const others = 3
	total, seen := map[string]int{}, map[string]int{}
	for _, s := range log {
		total[s]++
	}
	n := 0
	for i, s := range log {
		seen[s]++
		corner := seen[s] <= 2 || seen[s] == total[s]
		if i < from || !long && (strings.HasPrefix(s, "get") || !corner) {
			continue
		}
		at := fault{text: s, nth: seen[s]}
		if n++; long || n%every == 0 {
			out = append(out, at)
		} else if len(out) > 0 && n%every <= others {
			last := &out[len(out)-1]
			last.instead = append(last.instead, at)
		}
	}
	return out
}

// stepsOf runs a command that logs its steps, and that nobody disturbs.
func stepsOf(t testing.TB, cmd func(log string) *exec.Cmd) []string {
	t.Helper()
	var log string
	if o := calmly(t, func() *exec.Cmd { log = tempFile(t, "steps"); return cmd(log) }); o.code != 0 {
		t.Fatalf("%v", o)
	}
	steps := logged(t, log)
	if len(steps) < 100 {
		t.Fatalf("only %d steps: they are not counted", len(steps))
	}
	return steps
}

// usual gives the steps that most of three runs take, in the order of the run that takes most of these: one that
// has to stop the threads again takes more, and what it does in a stop depends on where the threads are.
func usual(steps func() []string) (out []string) {
	runs := [][]string{steps(), steps(), steps()}
	counts := map[string][]int{}
	for i, run := range runs {
		for _, s := range run {
			if counts[s] == nil {
				counts[s] = make([]int, len(runs))
			}
			counts[s][i]++
		}
	}
	for _, n := range counts {
		slices.Sort(n)
	}
	for _, run := range runs {
		var kept []string
		seen := map[string]int{}
		for _, s := range run {
			if seen[s]++; seen[s] <= counts[s][len(runs)/2] {
				kept = append(kept, s)
			}
		}
		if len(kept) > len(out) {
			out = kept
		}
	}
	return out
}

func logged(t testing.TB, log string) []string {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// stepsOfDetach are the steps of kprobe detach in a process in which probes have been left.
func stepsOfDetach(t testing.TB, pid int) []string {
	t.Helper()
	return stepsOf(t, func(log string) *exec.Cmd { return faultCommand(t, log, nil, "detach", "-p", strconv.Itoa(pid)) })
}

// strikeDetach kills kprobe detach at a step. False: it did not come there.
func strikeDetach(t testing.TB, pid int, at fault) bool {
	t.Helper()
	log := tempFile(t, "log")
	o := run(t, faultCommand(t, log, []string{at.variable()}, "detach", "-p", strconv.Itoa(pid)))
	if o.signal != unix.SIGKILL && o.code != 0 && !overloaded(o) {
		t.Errorf("%v", o)
	}
	return at.killed(t, o, logged(t, log))
}

// strikes is what is done with the steps of a command, by two goroutines, which it tells apart.
type strikes struct {
	// steps are those of a run that nobody disturbs.
	steps func(i int) []string
	// strike strikes the command at a step, and says whether it came there.
	strike func(i int, at fault) bool
}

// each strikes at all steps. A command may not come to a step that other runs took: the machine was too busy, or no
// thread stood where the command takes that step. In Go a thread has room for a system call's frame on its own stack,
// or not; where a thread is in a detour at the end the memory goes in a stop of its own. Then the command is struck
// again, a few times, and then runs undisturbed. A step that this run does not take either depends on the threads, and
// another one serves instead; one that it takes is struck at again.
func (s strikes) each(t *testing.T, faults []fault) {
	t.Helper()
	const workers = 2
	var missed atomic.Int64
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			var at fault
			defer func() {
				if t.Failed() {
					t.Errorf("struck at the step %v", at)
				}
			}()
			for n := i; n < len(faults) && !t.Failed(); n += workers {
				met := false
				for _, at = range append([]fault{faults[n]}, faults[n].instead...) {
					if met = s.meet(t, i, at); met || t.Failed() {
						break
					}
				}
				if !met {
					missed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d steps, %d not met", len(faults), missed.Load())
	if met := len(faults) - int(missed.Load()); met*4 < len(faults) {
		t.Errorf("only %d of %d steps were met again", met, len(faults))
	}
}

// meet strikes at a step until the command comes to it, or does not come to it undisturbed either. A step that
// undisturbed runs take and struck ones do not is an error.
func (s strikes) meet(t *testing.T, i int, at fault) bool {
	const rounds, tries = 5, 4
	for range rounds {
		for range tries {
			if met := s.strike(i, at); met || t.Failed() {
				return met
			}
		}
		if !at.passed(s.steps(i)) {
			t.Logf("not met, by an undisturbed run neither: %v", at)
			return false
		}
	}
	t.Errorf("%d runs that were to be struck did not come to a step that each of %d undisturbed ones took", rounds*tries, rounds)
	return false
}

// TestInstead: where no run comes to a chosen step again, one that follows it serves.
func TestInstead(t *testing.T) {
	at := fault{text: "d", nth: 1, instead: []fault{{text: "e", nth: 1}, {text: "f", nth: 1}, {text: "g", nth: 1}}}
	var struck []string
	strikes{
		func(int) []string { return []string{"begin", "a"} },
		func(_ int, at fault) bool { struck = append(struck, at.text); return at.text == "f" },
	}.each(t, []fault{at})
	if s := strings.Join(struck, ""); s != "ddddeeeef" {
		t.Errorf("struck at %s, want d and e four times each, then f", s)
	}
}
