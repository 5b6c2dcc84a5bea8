package e2e

import (
	"fmt"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
)

// hammerReport is what gohammer answers to a phase.
type hammerReport struct {
	Whole    []wholeCount
	Rounds   map[string]int
	Hits     uint64
	Calls    uint64
	Grown    uint64
	Switched uint64
	GCs      uint32
	Mappings int
	RSS      uint64
	Code     uint64
	Problems []string
}

// wholeCount is what a probe counted that was armed during a whole phase.
type wholeCount struct {
	Kind, Func    string
	Calls, Left   uint64
	Runs, Bad     uint64
	Hits, Unwound uint64
	Misses        kprobes.Misses
	Fault         string
}

// TestSelfHammer has a program probe itself from 16 goroutines while 16 others run what is
// probed: for five seconds, or until each of them has come to something, in a long run ten
// minutes. What its probes count is what its functions count, and no detour is left.
func TestSelfHammer(t *testing.T) {
	phase := 1000
	if long {
		phase = 5000
	}
	p := testprog.Start(t, testprog.BuildLive(t, "gohammer"))
	base := hammerPhase(t, p, "phase", 0)
	sum := hammerReport{Rounds: map[string]int{}}
	var first, last *hammerReport
	hammered := func() bool {
		return sum.Hits > 0 && len(sum.Rounds) >= 6 && last.GCs > 0 && last.Grown > 0 && last.Switched > 0
	}
	start := time.Now()
	for i := 0; i < 2 || time.Since(start) < lasting(3*time.Second) || !hammered() && time.Since(start) < patience; i++ {
		last = hammerPhase(t, p, [2]string{"phase", "hot"}[i%2], phase)
		if last.Code != base.Code {
			t.Errorf("phase %d: %d bytes of generated code are left, %d when nothing was hammered", i, last.Code, base.Code)
		}
		if first == nil {
			first = last
		}
		for k, n := range last.Rounds {
			sum.Rounds[k] += n
		}
		sum.Hits += last.Hits
		sum.Calls += last.Calls
		if t.Failed() {
			break // what follows would only say so again
		}
	}
	t.Logf("%d calls, %d hits of probes that came and went, lives of probes: %v, %d collections, stacks grown %d times, %d changes of the thread; mappings %d → %d, RSS %d → %d KiB",
		sum.Calls, sum.Hits, sum.Rounds, last.GCs, last.Grown, last.Switched, first.Mappings, last.Mappings, first.RSS, last.RSS)
	if !hammered() {
		t.Error("that is no hammering")
	}
	p.Quit(nil)
}

// hammerPhase asks for a phase and checks what was counted in it.
func hammerPhase(t *testing.T, p *testprog.Proc, what string, ms int) *hammerReport {
	t.Helper()
	r := &hammerReport{}
	p.Ask(fmt.Sprintf("%s %d", what, ms), r)
	for _, s := range r.Problems {
		t.Error(s)
	}
	if len(r.Whole) < 8 {
		t.Errorf("%d probes were armed during the whole phase", len(r.Whole))
	}
	for i := range r.Whole {
		r.Whole[i].check(t)
	}
	return r
}

// check compares what a probe counted with what its function did.
func (c *wholeCount) check(t *testing.T) {
	t.Helper()
	seen := c.Hits + c.Misses.Total()
	switch c.Kind {
	case "kretprobe", "data":
		if c.Hits > c.Calls-c.Left || seen < c.Calls-c.Left || seen+c.Unwound > c.Calls {
			t.Errorf("%s of %s: %+v: hits and misses are not the calls that returned", c.Kind, c.Func, *c)
		}
		if c.Kind == "kretprobe" && c.Misses.Pool != 0 {
			t.Errorf("%s of %s: %+v: the common pool is full", c.Kind, c.Func, *c)
		}
	default:
		if seen != c.Calls {
			t.Errorf("%s of %s: %+v: hits and misses are not the calls", c.Kind, c.Func, *c)
		}
	}
	if c.Kind != "count" && c.Runs != c.Hits || c.Bad != 0 || c.Fault != "" {
		t.Errorf("%s of %s: %+v: the handler", c.Kind, c.Func, *c)
	}
}
