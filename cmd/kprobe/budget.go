package main

import (
	"fmt"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/budget"
	"kprobes.dev/kprobes/internal/engine"
)

// budgetValue is the flag --budget. Hits and time are given one by one.
type budgetValue struct{ b *kprobes.Budget }

func (v *budgetValue) String() string {
	if v.b == nil {
		return ""
	}
	return budget.Budget(*v.b).String()
}

// Type is what the help calls a value.
func (*budgetValue) Type() string { return "HITS/s|TIME/s" }

// Set takes one budget.
func (v *budgetValue) Set(text string) error { return (*budget.Budget)(v.b).Set(text) }

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
