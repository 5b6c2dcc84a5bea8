package e2e

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// TestInsmodKilledAtEveryStep: who holds the target is killed before the steps of insmod and rmmod. The program works on and computes right, whether its
// handlers run or not, and kprobe detach takes out what is left.
func TestInsmodKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	file := object(t, "steps")
	var ps [2]*testprog.Proc
	var before [2]*state
	sc := &scenario{runs: true}
	for i := range ps {
		ps[i] = leafProgram(t)
		sc.work(t, ps[i])
		before[i] = stateOf(t, ps[i].PID)
	}
	steps := func(i int) []string {
		log := tempFile(t, "steps")
		for o := loadedAndRemoved(t, ps[i].PID, file, log); o.code != 0; o = loadedAndRemoved(t, ps[i].PID, file, log) {
			if !overloaded(o) {
				t.Fatalf("%v", o)
			}
			detach(t, ps[i].PID)
		}
		before[i].same(t)
		return logged(t, log)
	}
	strike := func(i int, at fault) bool {
		p, log := ps[i], tempFile(t, "log")
		o := loadedAndRemoved(t, p.PID, file, log, at.variable())
		killed := strings.Contains(o.stderr, "was killed or has crashed") || strings.Contains(o.stderr, "has no modules") // before rmmod came
		if o.code != 0 && !killed && !overloaded(o) {
			t.Errorf("%v", o)
		}
		before[i].free(t)
		sc.work(t, p)
		detach(t, p.PID)
		before[i].same(t)
		sc.work(t, p)
		if n := at.among(logged(t, log)); killed && n != at.nth-1 || !killed && n >= at.nth {
			t.Errorf("killed: %t; it has taken %d such steps: %v", killed, n, o)
		}
		return killed
	}
	log := usual(func() []string { return steps(0) })
	faults := faultsOf(log, 0, 89)
	seen := map[string]bool{}
	for _, s := range log { // at all of those in which a thread is made for the module's start
		if f := (fault{text: s, nth: 1}); strings.Contains(s, ".StartThread") && !seen[s] && !slices.ContainsFunc(faults, f.same) {
			seen[s] = true
			faults = append(faults, f)
		}
	}
	strikes{steps, strike}.each(t, faults)
}

// loadedAndRemoved loads a module, lets it count, and removes it. It is the outcome of the command that fails, or of the last one. Afterwards nobody holds the process.
func loadedAndRemoved(t *testing.T, pid int, file, log string, env ...string) outcome {
	t.Helper()
	p := strconv.Itoa(pid)
	o := run(t, faultCommand(t, log, env, "insmod", "-p", p, file))
	if o.code == 0 {
		o = run(t, command(t, "rmmod", "-p", p, "steps"))
		m := regexp.MustCompile(`\] before (\d+) after (\d+) entries (\d+) returns (\d+)\n$`).FindStringSubmatch(o.stdout)
		if o.code == 0 && (m == nil || !oneLess(t, m[1], m[2]) || !oneLess(t, m[3], m[4])) {
			t.Errorf("%v", o)
		}
	}
	within(t, "nobody holds the process", func() bool { return holderPID(t, pid) == 0 })
	return o
}

// oneLess says whether two counts are the same, but for one call: the thread may have been in the middle of it when the probe was taken out.
func oneLess(t *testing.T, begun, ended string) bool {
	n, err := strconv.ParseInt(begun, 10, 64)
	m, err2 := strconv.ParseInt(ended, 10, 64)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return n > 0 && (n-m == 0 || n-m == 1)
}
