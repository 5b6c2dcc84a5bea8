package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/engine"
)

// budgetValue is the flag --budget. Hits and time are given one by one.
type budgetValue struct{ b *kprobes.Budget }

func (v *budgetValue) String() string {
	if v.b == nil {
		return ""
	}
	var all []string
	if v.b.Hits > 0 {
		all = append(all, fmt.Sprintf("%d/s", v.b.Hits))
	}
	if v.b.Nanos > 0 {
		all = append(all, fmt.Sprintf("%v/s", time.Duration(v.b.Nanos)))
	}
	return strings.Join(all, " ")
}

// Type is what the help calls a value.
func (*budgetValue) Type() string { return "HITS/s|TIME/s" }

// budgetUnits are the letters that may stand behind the number of hits.
var budgetUnits = map[byte]uint64{'k': 1_000, 'M': 1_000_000, 'G': 1_000_000_000}

// maxBudget is the most that the flag takes of both.
const maxBudget = 1_000_000_000_000

// Set takes one budget.
func (v *budgetValue) Set(text string) error {
	number, ok := strings.CutSuffix(text, "/s")
	if d, err := time.ParseDuration(number); ok && err == nil && d > 0 && d <= maxBudget {
		v.b.Nanos = uint64(d)
		return nil
	}
	unit := uint64(1)
	if n := len(number); n > 0 && budgetUnits[number[n-1]] > 0 {
		unit, number = budgetUnits[number[n-1]], number[:n-1]
	}
	hits, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || hits == 0 || hits > maxBudget/unit {
		return fmt.Errorf("hits a second are wanted, from 1/s to 1000G/s (10k/s), or time, from 1ns/s to 1000s/s (5ms/s)")
	}
	v.b.Hits = hits * unit
	return nil
}

// exceeding is what has been told of events that were disabled by their budgets.
type exceeding struct {
	changes uint64
	told    map[*kprobes.Event]bool
}

// Exceeded tells of each event that was disabled since it was called last.
func (e *probed) Exceeded(tell func(name string, why error)) {
	n := engine.Of(e.core).Exceeded()
	if n == e.exceeding.changes {
		return
	}
	e.exceeding.changes = n
	before, now := e.exceeding.told, map[*kprobes.Event]bool{}
	last := ""
	for _, ev := range e.evs {
		why := engine.OfEvent(ev).Exceeded()
		if why == nil {
			continue
		}
		now[ev] = true
		if name := ev.Group + "/" + ev.Name; !before[ev] && name != last { // those that f makes one event have one budget
			tell(ev.Name, why)
			last = name
		}
	}
	e.exceeding.told = now
}

// exceeded tells of an event that was disabled by its budget.
func (t *tracing) exceeded(name string, why error) {
	fmt.Fprintf(t.f.con.stderr, "kprobe: %s: %v: disabled\n", name, why)
}
