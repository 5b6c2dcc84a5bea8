package e2e

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// turnsReport is what goturns answers to "turns".
type turnsReport struct {
	Turns, Held int
	Refused     map[string]int
	Calls       uint64
	Problems    []string
}

// TestSelfTracers has tracers come, go and be killed, at any moment, while a program probes itself in
// turns. Whoever comes second is refused with the name of who holds the process; what a killed
// tracer left is undone by the next one. No probe of either side loses a hit.
func TestSelfTracers(t *testing.T) {
	t.Parallel()
	rounds := 20
	if long {
		rounds = 200
	}
	p := testprog.Start(t, testprog.BuildLive(t, "goturns"))
	path, err := plain()
	if err != nil {
		t.Fatal(err)
	}
	report := func() (r turnsReport) {
		t.Helper()
		p.Ask("turns", &r)
		for _, s := range r.Problems {
			t.Error(s)
		}
		return r
	}
	rnd := rand.New(rand.NewPCG(uint64(rounds), 23))
	ends := map[string]int{}
	rare := func() bool {
		return ends["refused"] == 0 || ends["ended"] == 0 || ends["killed armed"] == 0 || len(report().Refused) < 2
	}
	for i := 0; i < rounds || rare() && i < 10*rounds; i++ {
		if t.Failed() {
			break
		}
		s := &session{t: t, pid: p.PID}
		s.start(exec.Command(path, "trace", "-p", strconv.Itoa(p.PID), "--alone", "p:a main.leaf a=%ax", "r:b main.leaf ret=%ax", "p:c main.deep"))
		ends[s.chance(rnd, i)]++
		if !p.Alive() {
			t.Fatalf("round %d: the program has ended: %s", i, p.Stderr())
		}
	}
	if o := run(t, command(t, "detach", "-p", strconv.Itoa(p.PID))); o.code != 0 && !strings.Contains(o.stderr, "probes itself") {
		t.Errorf("detach at the end: %v", o)
	}
	old := report()
	within(t, "a turn with its own probes after the last tracer", func() bool { return report().Held > old.Held })
	r := report()
	t.Logf("%d turns, %d with own probes, refused: %v; tracers: %v", r.Turns, r.Held, r.Refused, ends)
	if r.Held == 0 || len(r.Refused) < 2 {
		t.Errorf("%+v: the program was to be refused because of tracers that live and of ones that were killed", r)
	}
	p.Quit(&r)
	for _, s := range r.Problems {
		t.Error(s)
	}
}

// chance ends a trace in one of three ways, and says in which it ended: at once when it stands, by a
// kill when it stands, or by a kill at any moment before.
func (s *session) chance(rnd *rand.Rand, i int) string {
	s.t.Helper()
	way := i % 3
	var after <-chan time.Time
	if way == 2 {
		after = time.After(time.Duration(rnd.IntN(60)) * time.Millisecond)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for {
		select {
		case <-s.done:
			return s.refused()
		case <-after:
			_ = s.cmd.Process.Kill()
			<-s.done
			return "killed"
		case <-end:
			s.t.Fatalf("%s neither ends nor arms: %s", s.cmd, s.errs.String())
		case <-tick.C:
		}
		if way == 2 || strings.Count(s.out.String(), "\n") < 20 {
			continue
		}
		if way == 1 {
			_ = s.cmd.Process.Kill()
			<-s.done
			return "killed armed"
		}
		s.interrupt()
		r := s.wait()
		if r.code != 0 {
			s.t.Fatalf("round %d: %v", i, r.outcome)
		}
		lines := map[string]uint64{}
		for _, l := range r.lines {
			lines[l.event]++
		}
		for _, e := range []string{"a", "b", "c"} {
			// None: a thread was in the way of the jump for as long as the trace lasted.
			if n := r.totals[e]; n.hits != lines[e]+n.lost || n.tactic != "jump" && (n.tactic != "none" || n.hits != 0) {
				s.t.Errorf("round %d: %s: %+v, but %d lines", i, e, n, lines[e])
			}
		}
		return "ended"
	}
}

// refused checks why a trace has ended by itself.
func (s *session) refused() string {
	s.t.Helper()
	r := s.result()
	if r.code != 1 || !strings.Contains(r.stderr, fmt.Sprintf("process %d: process probes itself", s.pid)) {
		s.t.Fatalf("%s: %v", s.cmd, r.outcome)
	}
	return "refused"
}
