package e2e

import (
	"fmt"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// TestCgo probes C code of a Go program, and Go code that C calls: the arguments follow the
// convention of each function's own language, the red zone of C and the stacks of Go stay as
// they are, and every instruction of C can be a probe. With internal linking C is in the table of
// Go's functions.
func TestCgo(t *testing.T) {
	for _, flags := range [][]string{{"CGO_ENABLED=1"}, {"CGO_ENABLED=1", "-buildmode=pie"}, {"CGO_ENABLED=1", "-ldflags=-linkmode=internal"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			testCgo(t, flags)
			testCgoThreads(t, flags)
		})
	}
	t.Run("stripped", func(t *testing.T) { testCgoThreads(t, []string{"CGO_ENABLED=1", "-ldflags=-linkmode=internal -s -w"}) })
}

// testCgoThreads counts all functions while threads start, which C functions do that call one
// another: what these keep in registers over a call stays there.
func testCgoThreads(t *testing.T, flags []string) {
	p := hardGo(t, "gocgo", flags)
	s := trace(t, p.PID, "--counters", "--stat", "p *", "p:starts _cgo_sys_thread_start", "p:creates _cgo_try_pthread_create")
	for range 20 {
		right(t, p, "go 5")
	}
	r := s.end()
	p.Quit(nil)
	// One that the runtime starts by itself may be between the two when the probes go.
	if n, made := r.totals["starts"].hits, r.totals["creates"].hits; n < 10 || made != n && made+1 != n {
		t.Errorf("%d threads were started, %d made: %v", n, made, r.outcome)
	}
}

func testCgo(t *testing.T, flags []string) {
	const workers, rounds = 3, 40
	p := hardGo(t, "gocgo", flags, fmt.Sprint(workers))
	insideC(t, p)
	before := right(t, p, "count")
	s := trace(t, p.PID, "p:leaf c_leaf v=$arg1 k=$arg2 sp=%sp", "r:left c_leaf v=$arg1 k=$arg2 sum=$retval",
		"p:cback c_back v=$arg1", "r:cleft c_back v=$arg1 sum=$retval", "p:back main.Back v=$arg1", "r:goleft main.Back v=$arg1 sum=$retval")
	n := grown(before, right(t, p, fmt.Sprintf("go %d", rounds)))
	r := s.end()
	r.whole(t)
	for event, fn := range map[string]string{"leaf": "c_leaf", "cback": "c_back", "back": "main.Back"} {
		r.counted(t, event, n[fn], "jump")
	}
	for event, fn := range map[string]string{"left": "c_leaf", "cleft": "c_back", "goleft": "main.Back"} {
		r.entered(t, event, n[fn], 0)
	}
	var want []uint64
	for w := range uint64(workers) {
		for i := range uint64(rounds) {
			want = append(want, w<<32|i)
		}
	}
	for _, event := range []string{"cback", "cleft", "back", "goleft"} {
		if got := r.values(t, event, "v"); !slices.Equal(got, want) {
			t.Errorf("%s: %d values, the first %v", event, len(got), got[:min(len(got), 5)])
		}
	}
	r.each(t, "left", func(l line) bool {
		return l.number(t, "sum") == 16*l.number(t, "v")+120+l.number(t, "k") && l.number(t, "k") < 4
	})
	r.each(t, "leaf", func(l line) bool { return l.number(t, "sp")%16 == 8 && l.number(t, "k") < 4 })
	r.each(t, "cleft", func(l line) bool { return l.number(t, "sum") == 3*l.number(t, "v")+1 })
	r.each(t, "goleft", func(l line) bool { return l.number(t, "sum") == 3*l.number(t, "v") })
}

// insideC counts the runs of every instruction of c_leaf, in its red zone: some run once a
// call, and those of its loops once for each of the 15 values.
func insideC(t *testing.T, p *testprog.Proc) {
	t.Helper()
	args := []string{"--counters"}
	for _, a := range (&inside{path: p.Path, starts: true}).instructions(t) {
		if a.fn == "c_leaf" {
			args = append(args, fmt.Sprintf("p:in%d c_leaf+%d", a.off, a.off))
		}
	}
	before := right(t, p, "count")
	s := trace(t, p.PID, args...)
	calls := grown(before, right(t, p, "go 500"))["c_leaf"]
	r := s.end()
	if len(r.totals) != len(args)-1 || len(r.totals) < 15 {
		t.Errorf("%d probes: %v", len(args)-1, r.outcome)
	}
	for event, c := range r.totals {
		if c.hits != calls && c.hits != 15*calls && c.hits != 14*calls || c.missed != 0 || c.tactic == "uprobe" {
			t.Errorf("%s: %+v, the program counted %d calls", event, c, calls)
		}
	}
}

// each checks all lines of an event.
func (r *result) each(t *testing.T, event string, ok func(line) bool) {
	t.Helper()
	for _, l := range r.of(event) {
		if !ok(l) {
			t.Fatalf("%v", l)
		}
	}
}

// TestOwnMask looks at a program's threads while it starts others, with cgo: what these block for a
// moment is not taken for their own.
func TestOwnMask(t *testing.T) {
	p := hardGo(t, "gocgo", []string{"CGO_ENABLED=1"})
	done := make(chan bool)
	go func() {
		defer close(done)
		for range 200 {
			p.Send("go 1")
			p.Line()
		}
	}()
	seen := map[string]int{}
	for end := false; !end; {
		select {
		case <-done:
			end = true
		default:
		}
		for _, tid := range tasks(t, p.PID) {
			seen[field(t, p.PID, tid, "SigBlk")]++
			if mask := ownMask(t, p.PID, tid, true); mask != "" && mask != "0000000000000000" {
				t.Fatalf("thread %d has mask %s of its own", tid, mask)
			}
		}
	}
	t.Logf("masks: %v", seen)
	p.Quit(nil)
}
