//go:build !race

package kprobes_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

//go:noinline
func spent(n int) int { return n*3 + 1 }

var spentSum int

//go:noinline
func spared(n int) int { return n*3 + 2 }

// TestSelfBudget exceeds the budget of an event of the own process: it is disabled and says why, in its form and in the list, and an event
// beside it is not. What comes beyond the budget is counted. SetEnabled arms it again, with a full budget.
func TestSelfBudget(t *testing.T) {
	const most = 1000
	core, err := kprobes.Self()
	must(t, err)
	var defs []*event.Def
	for _, text := range []string{"p:busy " + selfPrefix + "spent n=$arg1:s64", "p:quiet " + selfPrefix + "spared n=$arg1:s64"} {
		d, err := event.Parse(text)
		must(t, err)
		defs = append(defs, d)
	}
	if _, err := core.Add(defs, &kprobes.AddOptions{Budget: kprobes.Budget{Hits: 2e12}}); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "2000000000000 hits a second: at most 1000000000000") {
		t.Errorf("a budget of 2e12 hits: %v", err)
	}
	evs, err := core.Add(defs, &kprobes.AddOptions{Budget: kprobes.Budget{Hits: most}})
	must(t, err)
	busy, quiet := evs[0], evs[1]
	calls, read := uint64(0), map[string]uint64{}
	poll := func() { core.Poll(func(h *kprobes.Hit) { read[h.Event.Name]++ }) }
	for i := range 10 {
		if spared(i) != 3*i+2 {
			t.Fatal("a wrong result")
		}
	}
	exceeded := func() bool {
		_, why := busy.Form()
		return errors.Is(why, unix.EDQUOT)
	}
	for !exceeded() {
		for i := range 2 * most {
			if spent(i) != 3*i+1 {
				t.Fatal("a wrong result")
			}
			calls++
		}
		poll()
	}
	if tactic, why := busy.Form(); tactic != "" || why.Error() != "more than 1000 hits a second" {
		t.Errorf("%q: %v", tactic, why)
	}
	if tactic, why := quiet.Form(); tactic != kprobes.TacticJump || why != nil {
		t.Errorf("the quiet one: %q: %v", tactic, why)
	}
	var list strings.Builder
	must(t, core.List(&list))
	if !strings.Contains(list.String(), "spent+0x0") || !strings.Contains(list.String(), "[DISABLED] more than 1000 hits a second\n") || strings.Count(list.String(), "[DISABLED]") != 1 {
		t.Errorf("the list: %s", &list)
	}
	records := func(most uint64) {
		eventually(t, "the records", func() bool {
			poll()
			return core.Counts(busy).Read >= most
		})
	}
	records(most)
	n := core.Counts(busy)
	if n.Hits > calls || n.Over == 0 || n.Read < most || n.Hits != n.Read+n.Lost+n.Over {
		t.Errorf("%d calls: %+v", calls, n)
	}
	for i := range 100 {
		spentSum += spent(i)
	}
	if again := core.Counts(busy); again != n {
		t.Errorf("while it is disabled: %+v, then %+v", n, again)
	}
	must(t, core.SetEnabled(true))
	if tactic, why := busy.Form(); tactic != kprobes.TacticJump || why != nil {
		t.Errorf("armed again: %q: %v", tactic, why)
	}
	for i := range most {
		spentSum += spent(i)
	}
	must(t, core.Remove(evs))
	records(n.Read + most)
	if last := core.Counts(busy); last.Hits != n.Hits+most || last.Over != n.Over || read["busy"] != last.Read {
		t.Errorf("%+v, then %d calls: %+v, %d read", n, most, last, read["busy"])
	}
	if n := core.Counts(quiet); n.Hits != 10 || n.Over != 0 || read["quiet"] != 10 {
		t.Errorf("the quiet one: %+v, %d read", n, read["quiet"])
	}
}
