package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// fault is a step of the command before which it is struck: a request of ptrace, or a write into a
// process (target/process, kprobes_fault).
type fault struct {
	text string // the request and the functions that led to it
	nth  int    // of the steps of this text, from 1
}

func (f fault) String() string { return fmt.Sprintf("no. %d of %s", f.nth, f.text) }

// variable tells the command where it is struck.
func (f fault) variable() string { return fmt.Sprintf("KPROBES_FAULT_STEP=%d %s", f.nth, f.text) }

// passed says whether a command that ended by itself came past the step.
func (f fault) passed(log []string) bool {
	n := 0
	for _, s := range log {
		if s == f.text {
			n++
		}
	}
	return n >= f.nth
}

// faultsOf chooses from the steps of a run that nobody disturbed, from an index on. A long run
// takes all. A short run takes, of each text, the first step, the second and the last, and of these
// one of so many; it leaves out requests that only read, since the process is the same before and
// after them.
func faultsOf(log []string, from, every int) (out []fault) {
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
		if n++; long || n%every == 0 {
			out = append(out, fault{s, seen[s]})
		}
	}
	return out
}

// stepsOf runs a command that logs its steps and gives them: the fewest of three runs, for one that
// has to stop the threads again takes more.
func stepsOf(t testing.TB, cmd func(log string) *exec.Cmd) (least []string) {
	t.Helper()
	for i := range 3 {
		var log string
		if o := calmly(t, func() *exec.Cmd { log = tempFile(t, "steps"); return cmd(log) }); o.code != 0 {
			t.Fatalf("%v", o)
		}
		if steps := logged(t, log); i == 0 || len(steps) < len(least) {
			least = steps
		}
	}
	if len(least) < 100 {
		t.Fatalf("only %d steps: they are not counted", len(least))
	}
	return least
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
func stepsOfDetach(t testing.TB, left func() int) []string {
	t.Helper()
	return stepsOf(t, func(log string) *exec.Cmd {
		return faultCommand(t, log, nil, "detach", "-p", strconv.Itoa(left()))
	})
}

// strikeDetach kills kprobe detach at a step. False: it did not come there.
func strikeDetach(t testing.TB, pid int, at fault) bool {
	t.Helper()
	o := run(t, faultCommand(t, tempFile(t, "log"), []string{at.variable()}, "detach", "-p", strconv.Itoa(pid)))
	if o.signal != unix.SIGKILL && o.code != 0 && !overloaded(o) {
		t.Errorf("%v", o)
	}
	return o.signal == unix.SIGKILL
}

// strikeEach calls f for the steps, from two goroutines, which it tells apart. f says whether the
// command came to the step. It may not: the machine was too busy, or no thread stood where it takes
// the step. Then f is called again, a few times.
func strikeEach(t *testing.T, faults []fault, f func(i int, at fault) bool) {
	t.Helper()
	const workers, tries = 2, 4
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
				at = faults[n]
				met := false
				for try := 0; try < tries && !met && !t.Failed(); try++ {
					met = f(i, at)
				}
				if !met {
					missed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d steps, %d not met", len(faults), missed.Load())
	if int(missed.Load())*8 > len(faults) {
		t.Errorf("%d of %d steps were not met again", missed.Load(), len(faults))
	}
}
