package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
)

// backProbes are return probes on the two functions of the program tailback, two on one of them, and probes on
// their entries.
var backProbes = []string{
	"p:enter back", "p:further forth",
	"r:out back more=$arg1 v=$arg2 ret=$retval", "r:second back more=$arg1 v=$arg2 ret=$retval", "r:forth forth more=$arg1 v=$arg2 ret=$retval",
}

// Functions that come back to their entries by jumps: each entry has its return. Calls that longjmp leaves
// count as left, and no others.
func TestTailBack(t *testing.T) {
	p := program(t, "tailback")
	s := trace(t, p.PID, append([]string{"--stat"}, backProbes...)...)
	right(t, p, "go 1000")
	right(t, p, "spin 3")
	right(t, p, "leave 333")
	right(t, p, "go 10")
	right(t, p, "leave 5")
	n := right(t, p, "rest")
	r := s.end()
	r.counted(t, "enter", n["back"], "jump")
	r.counted(t, "further", n["forth"], "jump")
	left := map[string]uint64{"out": n["left"], "second": n["left"], "forth": n["left"] - 338}
	for name, entries := range map[string]uint64{"out": n["back"], "second": n["back"], "forth": n["forth"]} {
		c := r.totals[name]
		if c.hits != entries-left[name] || c.unwound+c.active != left[name] || c.missed != 0 {
			t.Errorf("%s: %+v, the program: %v", name, c, n)
		}
	}
	if strings.Contains(r.stderr, "BUG") || strings.Count(r.stderr, "returns=trampoline") != 3 {
		t.Error(r.stderr)
	}
	right(t, p, "go 100")
}

// At the one return each call's record has what its own entry has kept, the newest first.
func TestTailBackOrder(t *testing.T) {
	p := program(t, "tailback")
	s := trace(t, p.PID, backProbes[2:]...)
	var want []string
	for depth := range 5 {
		right(t, p, fmt.Sprintf("deep %d", depth+1))
		for more := range depth { // forth was entered with one more to come
			want = append(want, fmt.Sprintf("forth %d %d %d", more+1, 2*(depth-more-1)+2, 3*(2*depth+1)))
		}
		for more := range depth + 1 {
			for _, name := range []string{"second", "out"} {
				want = append(want, fmt.Sprintf("%s %d %d %d", name, more, 2*(depth-more)+1, 3*(2*depth+1)))
			}
		}
	}
	r := s.end()
	r.whole(t)
	var got []string
	for _, l := range r.lines {
		got = append(got, fmt.Sprintf("%s %d %d %d", l.event, l.number(t, "more"), l.number(t, "v"), l.number(t, "ret")))
		if !strings.HasPrefix(l.place, "check+") && !strings.HasPrefix(l.place, "main+") {
			t.Errorf("%s: returns to %s", l.event, l.place)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// Entries for which there is no instance are missed. The calls before them and after them return.
func TestTailBackMissed(t *testing.T) {
	for _, c := range []struct {
		name     string
		max      string
		commands []string
		hits     uint64
	}{
		{"many", "", []string{"deep 500", "deep 3", "deep 64"}, 64 + 3 + 64},
		{"maxactive", "3", []string{"deep 5", "deep 3", "deep 1", "deep 4"}, 3 + 3 + 1 + 3},
		{"one", "1", []string{"deep 5", "deep 1"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := program(t, "tailback")
			s := trace(t, p.PID, "--stat", fmt.Sprintf("r%s:out back $retval", c.max), "r:forth forth $retval")
			var n map[string]uint64
			for _, command := range c.commands {
				n = right(t, p, command)
			}
			if out := s.end().totals["out"]; out.hits != c.hits || out.missed != n["back"]-c.hits || out.unwound+out.active != 0 {
				t.Errorf("%+v, the program: %v", out, n)
			}
		})
	}
}

// cameBack attaches to the program, with threads that stand in calls which have come back.
func cameBack(t *testing.T, texts ...string) (*testprog.Proc, *kprobes.Core, []*kprobes.Event) {
	t.Helper()
	p := program(t, "tailback")
	core := open(t, p)
	evs := addReturns(t, core, texts...)
	right(t, p, "hold 10")
	return p, core, evs
}

// Everything is taken out while calls are in progress: they go on with their real return addresses.
func TestTailBackClosedInCall(t *testing.T) {
	p, core, evs := cameBack(t, "r:out back $retval", "r:forth forth $retval")
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	for e, active := range map[*kprobes.Event]uint64{evs[0]: 30, evs[1]: 20} {
		if c := core.Counts(e); c.Active != active || c.Hits+c.Unwound+c.Missed != 0 {
			t.Errorf("%s: %+v", e.Name, c)
		}
	}
	intact(t, p.PID)
	right(t, p, "release")
	right(t, p, "go 100")
}

// A probe is taken out while calls are in progress, and another of the function stays; one that comes then sees
// only its own calls.
func TestTailBackRemovedInCall(t *testing.T) {
	p, core, evs := cameBack(t, "r:out back $retval", "r:stays back $retval", "r:forth forth $retval")
	if err := core.Remove([]*kprobes.Event{evs[0], evs[2]}); err != nil {
		t.Fatal(err)
	}
	again := addReturns(t, core, "r:again back $retval")
	right(t, p, "release")
	right(t, p, "deep 4")
	n := right(t, p, "go 20")
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	for e, hits := range map[*kprobes.Event]uint64{evs[0]: 0, evs[1]: n["back"], again[0]: n["back"] - 30} {
		if c := core.Counts(e); c.Hits != hits || c.Unwound+c.Missed != 0 {
			t.Errorf("%s: %+v, the program: %v", e.Name, c, n)
		}
	}
	intact(t, p.PID)
	right(t, p, "go 100")
}

// A second probe comes and goes while threads come back by jumps all the time: each entry is the first probe's
// too, and has its return.
func TestTailBackChanges(t *testing.T) {
	p := program(t, "tailback")
	core := open(t, p)
	whole := addReturns(t, core, "r:whole back $retval")
	right(t, p, "spin 2")
	for range 100 {
		if err := core.Remove(addReturns(t, core, "r:part back $retval", "r:forth forth $retval")); err != nil {
			t.Fatal(err)
		}
	}
	n := right(t, p, "rest")
	if c := core.Counts(whole[0]); c.Hits != n["back"] || c.Unwound+c.Active+c.Missed != 0 {
		t.Errorf("%+v, the program: %v", c, n)
	}
}

// All is taken out while threads come back by jumps, and return: their return addresses are put back at any moment.
func TestTailBackClosedWhileRunning(t *testing.T) {
	p := program(t, "tailback")
	right(t, p, "spin 2")
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			core := open(t, p)
			evs := addReturns(t, core, "r:out back $retval", "r:second back $retval", "r:forth forth $retval")
			within(t, "returns", func() bool { return core.Counts(evs[0]).Hits > 0 && core.Counts(evs[2]).Hits > 0 })
			if err := core.Close(nil); err != nil {
				t.Fatal(err)
			}
			for _, e := range evs {
				if c := core.Counts(e); c.Unwound+c.Missed != 0 || c.Active > 2*5 {
					t.Errorf("%s: %+v", e.Name, c)
				}
			}
			intact(t, p.PID)
		})
	}
	right(t, p, "rest")
}

// Calls that are left take all instances of a probe: they are found to be over, those that came back too, and the
// instances serve again.
func TestTailBackReclaimed(t *testing.T) {
	p := program(t, "tailback")
	core := open(t, p)
	evs := addReturns(t, core, "r5:out back $retval")
	right(t, p, "leave 5")
	if c := core.Counts(evs[0]); c.Unwound != 10 || c.Missed != 0 {
		t.Errorf("%+v", c)
	}
	var n map[string]uint64
	within(t, "instances", func() bool {
		n = right(t, p, "deep 1")
		return core.Counts(evs[0]).Hits > 0
	})
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	if c := core.Counts(evs[0]); c.Unwound != 15 || c.Missed == 0 || c.Hits+c.Missed+c.Unwound != n["back"] {
		t.Errorf("%+v, the program: %v", c, n)
	}
}

// A tracer is killed while calls are in progress. The program goes on, and kprobe detach restores it, before the
// calls return and after.
func TestTailBackKilledInCall(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			p := program(t, "tailback")
			k := &session{t: t, pid: p.PID}
			k.start(command(t, append([]string{"trace", "-p", fmt.Sprint(p.PID), "--alone", "--stat"}, backProbes...)...))
			k.armed()
			right(t, p, "hold 10")
			right(t, p, "spin 2")
			if err := k.cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-k.done
			right(t, p, "go 100")
			if after {
				right(t, p, "release")
			}
			if o := run(t, command(t, "detach", "-p", fmt.Sprint(p.PID))); o.code != 0 {
				t.Fatal(o)
			}
			intact(t, p.PID)
			if !after {
				right(t, p, "release")
			}
			right(t, p, "rest")
			right(t, p, "go 100")
		})
	}
}
