package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// The budget of the tests, as hits a second.
const budgetHits = 2000

var budgetFlag = fmt.Sprintf("--budget=%d/s", budgetHits)

// overLine is what a summary's line tells of a budget.
var overLine = regexp.MustCompile(`(?m)^(\S+) hits=.* over=(\d+)(?: \w+=[^\s"]+)*(?: disabled="(.*)")?$`)

// overs reads, by event, the hits beyond its budget and why it is disabled.
func overs(stderr string) (over map[string]uint64, disabled map[string]string) {
	over, disabled = map[string]uint64{}, map[string]string{}
	for _, m := range overLine.FindAllStringSubmatch(stderr, -1) {
		over[m[1]], _ = strconv.ParseUint(m[2], 10, 64)
		disabled[m[1]] = m[3]
	}
	return over, disabled
}

// toldDisabled waits until a command has told of events that they are disabled.
func toldDisabled(t *testing.T, s *session, events ...string) {
	t.Helper()
	for _, e := range events {
		within(t, e+" to be disabled", func() bool {
			return strings.Contains(s.errs.String(), fmt.Sprintf("kprobe: %s: more than %d hits a second: disabled\n", e, budgetHits))
		})
	}
}

// unattended has a program make calls while nobody fills budgets: what holds the process stands still. The budgets are full before, and
// what is beyond them is so much that they are exceeded whenever it goes on.
func unattended(t *testing.T, p *testprog.Proc, command string) (before, after map[string]uint64) {
	t.Helper()
	return unattendedBy(t, p, "go 0", command)
}

// unattendedBy is unattended for a program whose counts are asked for otherwise.
func unattendedBy(t *testing.T, p *testprog.Proc, count, command string) (before, after map[string]uint64) {
	t.Helper()
	before = right(t, p, count)
	goOn := standStill(t, holderPID(t, p.PID), p.PID)
	after = right(t, p, command)
	goOn()
	return before, after
}

// standStill has a tracer stand still, but not within a stop of its program, which would stand still too. goOn has it go on.
func standStill(t testing.TB, tracer, pid int) (goOn func()) {
	t.Helper()
	signal := func(sig unix.Signal) {
		t.Helper()
		if err := unix.Kill(tracer, sig); err != nil {
			t.Fatal(err)
		}
	}
	goOn = func() {
		t.Helper()
		signal(unix.SIGCONT)
	}
	within(t, "the tracer to be outside of a stop", func() bool {
		signal(unix.SIGSTOP)
		within(t, "the tracer to stand still", func() bool {
			return !slices.ContainsFunc(tasks(t, tracer), func(tid int) bool { s := field(t, tracer, tid, "State"); return s != "" && s[0] != 'T' })
		})
		traced := func(tid int) bool { by := field(t, pid, tid, "TracerPid"); return by != "" && by != "0" }
		if slices.ContainsFunc(tasks(t, pid), traced) {
			goOn()
			return false
		}
		return true
	})
	return goOn
}

// TestBudget has busy events and a quiet one, in C and in Go. The busy ones do a second's work and are disabled by themselves: all hits are
// counted, exactly those within are recorded. The quiet one stays. kprobe enable arms the others again.
func TestBudget(t *testing.T) {
	const many = 50_000 // calls of each of four threads or goroutines
	for _, c := range []struct {
		prog, plain, filtered, ret, quiet string
		names                             [3]string
	}{
		{"work", "f_six a=$arg1", "f_str n=$arg2:u32", "f_ptr v=$retval", "report", [3]string{"f_six", "f_str", "f_ptr"}},
		{"gowork", "main.Ints a=$arg1", "main.Text n=$arg3:u32", "main.Record v=$retval", "main.report", [3]string{"main.Ints", "main.Text", "main.Record"}},
	} {
		t.Run(c.prog, func(t *testing.T) {
			p := program(t, c.prog, "4")
			s := trace(t, p.PID, budgetFlag, "p:plain "+c.plain, "p:filtered "+c.filtered, "-f", "n == 3", "r:ret "+c.ret, "p:quiet "+c.quiet)
			before, after := unattended(t, p, fmt.Sprintf("go %d", many))
			toldDisabled(t, s, "plain", "filtered", "ret")
			within(t, "the code of the busy ones to go", func() bool { return points(t, p.PID) == 1 })
			right(t, p, "go 1000") // nobody counts these
			run(t, command(t, "enable", "-p", pid(p)))
			within(t, "the code of the busy ones to come", func() bool { return points(t, p.PID) == 4 && standing(p.PID) })
			again := right(t, p, "go 100")
			more := right(t, p, "go 0")
			r := s.end()
			if again[c.names[0]] != more[c.names[0]] {
				t.Fatalf("%v, %v", again, more)
			}
			over, disabled := overs(r.stderr)
			lines := map[string]uint64{}
			for _, l := range r.lines {
				lines[l.event]++
			}
			for i, e := range []string{"plain", "filtered", "ret"} {
				calls := after[c.names[i]] - before[c.names[i]]
				n := r.totals[e]
				if n.hits != calls+400 || over[e] != calls-budgetHits || n.lost != 0 || lines[e]+n.filtered != budgetHits+400 || (n.filtered > 0) != (e == "filtered") || disabled[e] != "" {
					t.Errorf("%s: %d calls, and 400: %+v, %d over, %d lines, %q", e, calls, n, over[e], lines[e], disabled[e])
				}
			}
			if n := r.totals["ret"]; n.missed+n.unwound+n.active != 0 {
				t.Errorf("returns: %+v", n)
			}
			// go 0, many, 1000, 100, 0
			if n := r.totals["quiet"]; n.hits != 5 || lines["quiet"] != 5 || over["quiet"] != 0 || n.tactic != "jump" {
				t.Errorf("quiet: %+v, %d lines, %d over", n, lines["quiet"], over["quiet"])
			}
			if strings.Contains(r.stderr, "quiet: more") {
				t.Error(r.stderr)
			}
		})
	}
}

// TestBudgetKinds exceeds the budgets of histograms, of counters with and without filters, of returns by trampoline, of functions that are
// one event, and of what the kernel holds. What has a countdown does exactly a second's work.
func TestBudgetKinds(t *testing.T) {
	const many = 50_000
	for _, c := range []struct {
		name   string
		args   []string
		calls  []string // functions whose calls are hits
		within int      // hits that are not over; -1: as many as there were
	}{
		{"hist", []string{"hist", "p:e f_six a=%di:u64", "keys=a.log2"}, []string{"f_six"}, budgetHits},
		{"stat", []string{"stat", "p:e f_six"}, []string{"f_six"}, -1},
		{"stat filter", []string{"stat", "p:e f_str n=$arg2:u32", "-f", "n == 3"}, []string{"f_str"}, budgetHits},
		{"trampoline", []string{"trace", "--trampoline", "r:e f_six v=$retval"}, []string{"f_six"}, budgetHits},
		{"functions", []string{"trace", "f:e f_s* n=$arg2:u64"}, []string{"f_six", "f_str", "f_small"}, budgetHits},
		{"record", []string{"record", "-o", tempFile(t, "dat"), "p:e f_six a=%di:u64"}, []string{"f_six"}, budgetHits},
		{"counted returns", []string{"trace", "--counters", "r:e f_six"}, []string{"f_six"}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := program(t, "work", "4")
			state := stateOf(t, p.PID)
			s := &session{t: t, pid: p.PID}
			s.start(command(t, append([]string{c.args[0], "-p", pid(p), budgetFlag}, c.args[1:]...)...))
			s.armed()
			before, after := unattended(t, p, fmt.Sprintf("go %d", many))
			toldDisabled(t, s, "e")
			within(t, "the code to go", func() bool { return points(t, p.PID) == 0 })
			right(t, p, "go 1000")
			s.interrupt()
			r := s.wait()
			state.same(t)
			calls := uint64(0)
			for _, f := range c.calls {
				calls += after[f] - before[f]
			}
			over, disabled := overs(r.stderr)
			want := calls - budgetHits
			if c.within < 0 {
				want = 0
			}
			if n := r.totals["e"]; n.hits != calls || over["e"] != want || n.lost+n.missed+n.unwound+n.active != 0 || disabled["e"] != fmt.Sprintf("more than %d hits a second", budgetHits) {
				t.Errorf("%d calls: %+v, %d over, %q: %v", calls, n, over["e"], disabled["e"], r.outcome)
			}
		})
	}
}

// TestBudgetTime exceeds budgets of time, by records whose cost is measured, and by a counter, whose cost is known. What is told of
// a hit's cost, and the hits, make up more than the budget.
func TestBudgetTime(t *testing.T) {
	const most, many = 100_000, 200_000 // nanoseconds a second, calls
	for _, c := range []struct {
		name string
		down bool // the code at the hit counts down
		args []string
	}{
		{"record", true, []string{"trace", "p:e f_str a=$arg1 s=+0(%di):string"}},
		{"return", true, []string{"trace", "r:e f_six v=$retval"}},
		{"hist", true, []string{"hist", "p:e f_six a=%di:u64", "keys=a.log2"}},
		{"count", false, []string{"stat", "p:e f_six"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := program(t, "work", "4")
			state := stateOf(t, p.PID)
			s := &session{t: t, pid: p.PID}
			s.start(command(t, append([]string{c.args[0], "-p", pid(p), "--budget", "100us/s"}, c.args[1:]...)...))
			s.armed()
			_, after := unattended(t, p, fmt.Sprintf("go %d", many/4)) // a look between could find the few hits until then too dear
			calls := after["f_six"]
			why := regexp.MustCompile(`kprobe: e: more than 100µs of work a second, at (\d+) ns a hit: disabled\n`)
			within(t, "e to be disabled", func() bool {
				if why.MatchString(s.errs.String()) {
					return true
				}
				calls = right(t, p, fmt.Sprintf("go %d", many/4))["f_six"]
				return false
			})
			s.interrupt()
			r := s.wait()
			state.same(t)
			cost, _ := strconv.ParseUint(why.FindStringSubmatch(r.stderr)[1], 10, 64)
			over, disabled := overs(r.stderr)
			n := r.totals["e"]
			if n.hits > calls || n.hits*(cost+1) < most || disabled["e"] == "" || cost == 0 {
				t.Errorf("%d calls at %d ns: %+v, %d over, %q", calls, cost, n, over["e"], disabled["e"])
			}
			if c.down != (over["e"] > 0) || !c.down && cost != 15 {
				t.Errorf("at %d ns: %+v, %d over", cost, n, over["e"])
			}
			t.Logf("%d ns a hit, %d of %d within", cost, n.hits-over["e"], n.hits)
		})
	}
}

// TestBudgetUprobe: what the kernel holds has no countdown. It is disabled all the same, and no hit is uncounted.
func TestBudgetUprobe(t *testing.T) {
	p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "work")), "4")
	s := &session{t: t, pid: p.PID}
	s.start(command(t, "trace", "-p", pid(p), "--tactic", "uprobe", budgetFlag, "p:e f_six a=%di:u64"))
	var calls uint64
	within(t, "e to be disabled", func() bool {
		calls = right(t, p, "go 1000")["f_six"]
		return strings.Contains(s.errs.String(), "kprobe: e: more than")
	})
	counted := right(t, p, "go 0")["f_six"]
	s.interrupt()
	r := s.wait()
	over, disabled := overs(r.stderr)
	if n := r.totals["e"]; n.hits < budgetHits || n.hits > calls || over["e"] != 0 || disabled["e"] == "" || counted != calls {
		t.Errorf("%d calls: %+v, %d over, %q", calls, n, over["e"], disabled["e"])
	}
	r.whole(t)
}

// TestBudgetKilled kills what holds a process: nobody fills the budget any more. The event falls silent by itself, the program goes on and
// comes to the right results, and kprobe detach takes out what is left.
func TestBudgetKilled(t *testing.T) {
	const many = 50_000
	p := program(t, "work", "4")
	state := stateOf(t, p.PID)
	s := &session{t: t, pid: p.PID}
	s.start(command(t, "trace", "-p", pid(p), budgetFlag, "p:e f_six a=%di:u64"))
	s.armed()
	first := right(t, p, "go 100")["f_six"]
	within(t, "the first lines", func() bool { return strings.Count(s.out.String(), "\n") == int(first) })
	if err := unix.Kill(holderPID(t, p.PID), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.done
	calls := right(t, p, fmt.Sprintf("go %d", many))["f_six"]
	words := budgetWords(t, p.PID)
	hits, limit, over := words[arch.BudgetHits/8], words[arch.BudgetLimit/8], words[arch.BudgetOver/8]
	if hits != calls || over != hits-limit || limit < budgetHits || limit > first+budgetHits {
		t.Errorf("%d calls, %d before: %d hits, limit %d, %d over", calls, first, hits, limit, over)
	}
	run(t, command(t, "detach", "-p", pid(p)))
	right(t, p, "go 1000")
	state.same(t)
}

// budgetWords reads the words of a process's only budget: they lie in the only memory file of probes that it maps to write and that is no ring.
func budgetWords(t *testing.T, pid int) []uint64 {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^([0-9a-f]+)-[0-9a-f]+ rw-s .*/memfd:kprobes:heap`).FindAllSubmatch(maps, -1)
	if len(all) != 1 {
		t.Fatalf("%d mappings for budgets:\n%s", len(all), maps)
	}
	at, err := strconv.ParseUint(string(all[0][1]), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	p, err := process.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b := make([]byte, arch.BudgetSize)
	if err := p.ReadMem(at, b); err != nil {
		t.Fatal(err)
	}
	words := make([]uint64, len(b)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return words
}

// BenchmarkBudget tells what a budget costs a hit that records a register, and what a hit beyond it costs.
func BenchmarkBudget(b *testing.B) {
	p := program(b, "sigmask", "none")
	for b.Loop() {
		base := perCall(p)
		for _, c := range []struct {
			name  string
			flags []string
		}{{"none", nil}, {"within", []string{"--budget", "1000G/s"}}} {
			s := trace(b, p.PID, append(c.flags, "--stat", "--buffer-size", "67108864", "p:a masked_work a=%di")...)
			b.ReportMetric(perCall(p)-base, c.name+"-ns/hit")
			s.end()
		}
		s := trace(b, p.PID, "--budget", "1/s", "--stat", "p:a masked_work a=%di")
		goOn := standStill(b, holderPID(b, p.PID), p.PID)
		b.ReportMetric(perCall(p)-base, "beyond-ns/hit")
		goOn()
		s.end()
	}
}

// armedLate is the line of TestBudgetLate's event in a list.
var armedLate = regexp.MustCompile(`lib_work\+0x0 .*\[OPTIMIZED\]`)

// TestBudgetLate has a budget for an event whose object comes later, goes, and comes again: it stays disabled until kprobe enable.
func TestBudgetLate(t *testing.T) {
	const many = 50_000
	lib := testprog.Build(t, "libdlone")
	p := program(t, "dl")
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(command(t, "trace", "-p", pid(p), budgetFlag, "p:e "+lib+":lib_work a=%di"))
	within(t, "the event to wait", func() bool { return strings.Contains(s.errs.String(), "e waits for its object") })
	right(t, p, "open "+lib)
	right(t, p, "call 100")
	unattendedBy(t, p, "count", fmt.Sprintf("call %d", many))
	toldDisabled(t, s, "e")
	within(t, "the code to go", func() bool { return points(t, p.PID) == 0 })
	right(t, p, "close")
	right(t, p, "open "+lib)
	right(t, p, "call 50")
	listed := func() string { return run(t, command(t, "list", "-p", pid(p))).stdout }
	if list := listed(); strings.Contains(list, "libdlone") {
		t.Errorf("listed: %s", list)
	}
	run(t, command(t, "enable", "-p", pid(p)))
	within(t, "the code to come", func() bool { return armedLate.MatchString(listed()) })
	right(t, p, "call 20")
	s.interrupt()
	r := s.wait()
	over, _ := overs(r.stderr)
	if n := r.totals["e"]; n.hits != 100+many+20 || over["e"] < many-budgetHits-100 || over["e"] > many-budgetHits+100 || n.hits != over["e"]+uint64(len(r.lines)) {
		t.Errorf("%+v, %d over, %d lines: %s", n, over["e"], len(r.lines), r.stderr)
	}
}

// TestBudgetRuntime has budgets for functions of Go's runtime that start and switch goroutines: they are disabled by themselves when many
// goroutines come, and all of these are counted.
func TestBudgetRuntime(t *testing.T) {
	const many = 50_000
	p := program(t, "gowork", "4")
	s := trace(t, p.PID, budgetFlag, "p:starts runtime.newproc1", "p:switches runtime.casgstatus from=$arg2:u32 to=$arg3:u32", "p:quiet main.report")
	unattendedBy(t, p, "count", fmt.Sprintf("leave %d", many))
	toldDisabled(t, s, "starts", "switches")
	within(t, "the code of the busy ones to go", func() bool { return points(t, p.PID) == 1 })
	right(t, p, "go 1000")
	r := s.end()
	over, disabled := overs(r.stderr)
	lines := map[string]uint64{}
	for _, l := range r.lines {
		lines[l.event]++
	}
	for e, least := range map[string]uint64{"starts": many, "switches": 3 * many} { // a goroutine becomes runnable, runs, and is dead
		if n := r.totals[e]; n.hits < least || n.hits != lines[e]+over[e]+n.lost || n.lost+n.missed > 0 || lines[e] < budgetHits || disabled[e] == "" {
			t.Errorf("%s: %+v, %d lines, %d over, %q; at least %d hits are wanted", e, n, lines[e], over[e], disabled[e], least)
		}
	}
	if n := r.totals["starts"]; n.hits > many+1000 {
		t.Errorf("%d goroutines were started, the program starts %d, and its runtime some", n.hits, many)
	}
	if n := r.totals["quiet"]; n.hits != 3 || disabled["quiet"] != "" {
		t.Errorf("quiet: %+v, %q", n, disabled["quiet"])
	}
}
