package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/testprog"
)

// selfToggles is what gotoggle answers: its source says what the numbers are.
type selfToggles struct {
	Toggles, Changes, Again, Probes, Places, Refused, Jumps, Traps, Exact, Within int

	Postponed, Hits, Missed, Calls, Heap uint64

	GCs      uint32
	Problems []string
}

// plus adds what was done from a begin to its end.
func (s *selfToggles) plus(r *selfToggles) {
	s.Toggles += r.Toggles
	s.Changes += r.Changes
	s.Again += r.Again
	s.Probes += r.Probes
	s.Jumps += r.Jumps
	s.Traps += r.Traps
	s.Exact += r.Exact
	s.Within += r.Within
	s.Postponed += r.Postponed
	s.Hits += r.Hits
	s.Missed += r.Missed
	s.Calls += r.Calls
	s.Places, s.Refused, s.GCs, s.Heap = r.Places, r.Refused, r.GCs, r.Heap
}

// A million times a patch in hot functions of the own process changes, in a short run for a few
// seconds: what TestToggles does with another process a program does with itself, whose eight
// threads run these functions all the time. Probes are registered and unregistered, with and
// without handlers, enabled and disabled; they become breakpoints and jumps again, by the knob, by
// post handlers and second probes. Those that are armed meanwhile count each call, those that
// come and go each that begins and ends in their time, and none that does not touch it. After
// each round of this the text is the file's, and no code and no memory is left.
func TestSelfToggles(t *testing.T) {
	t.Parallel()
	p := testprog.Start(t, testprog.BuildLive(t, "gotoggle"))
	before, code := stateOf(t, p.PID), anonymousCode(t, p.PID)
	var sum, first selfToggles
	start, over := time.Now(), ending()
	for round := 0; round == 0 || long && sum.Toggles < millionToggles && !over(); round++ {
		r := selfToggled(t, p, over)
		sum.plus(r)
		t.Logf("%d toggles in %.1f s", sum.Toggles, time.Since(start).Seconds())
		for _, s := range r.Problems {
			t.Error(s)
		}
		before.same(t)
		if round == 0 {
			first = *r
		} else if r.Heap > first.Heap+keptHeap {
			t.Errorf("round %d: %d bytes of heap, after the first %d", round, r.Heap, first.Heap)
		}
		if n := anonymousCode(t, p.PID); n != code {
			t.Errorf("%d executable mappings of no file, %d before the first probe", n, code)
		}
		if t.Failed() {
			break // what follows would only say so again
		}
	}
	p.Quit(nil)
	d := time.Since(start).Seconds()
	t.Logf("%d toggles in memory in %.1f s, %.0f a second; %+v", sum.Toggles, d, float64(sum.Toggles)/d, sum)
	if sum.Toggles < 1000 || sum.Jumps == 0 || sum.Traps == 0 || sum.Hits == 0 || sum.GCs == 0 {
		t.Error("that is no toggling")
	}
}

// Rounds from a begin to its end, and how often in each of them all is disarmed and armed.
var selfRounds, selfAgain = 3, 2

func init() {
	if long {
		selfRounds, selfAgain = 20, 10
	}
}

// selfToggled has the program do some rounds, and end them.
func selfToggled(t *testing.T, p *testprog.Proc, over func() bool) *selfToggles {
	t.Helper()
	r := &selfToggles{}
	p.Ask("begin", r)
	for i := 0; i < selfRounds && len(r.Problems) == 0 && !over(); i++ {
		p.Ask(fmt.Sprintf("round %d", selfAgain), r)
	}
	p.Ask("end", r)
	return r
}

// keptHeap is how much a program's heap may grow by what is not kept for each probe, in bytes.
const keptHeap = 4 << 20

// anonymousCode is the number of a process's executable mappings of no file.
func anonymousCode(t *testing.T, pid int) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := procfs.ParseMaps(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if m.Perm&procfs.PermExec != 0 && m.Anonymous() {
			n++
		}
	}
	return n
}
