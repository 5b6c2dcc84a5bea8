package trace

import (
	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
)

// EventCounts is what an event has counted since it was defined, for all instances: of all its probes.
type EventCounts struct {
	Group, Name string
	Defs        []*event.Def // of its probes
	kprobes.Counts
	// Histograms are those of its triggers in this instance, which must not be kept.
	Histograms []*hit.Histogram
}

// EachCounts gives what each event has counted: Hits, Missed and Lost of its probes, and its histograms, as they are then. f must not call the Instance.
func (in *Instance) EachCounts(f func(EventCounts)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.drain()
	var all []EventCounts
	for _, e := range in.order {
		c := EventCounts{Group: e.group, Name: e.name}
		for _, p := range e.probes {
			n := in.counts(p)
			c.Defs = append(c.Defs, p.def)
			c.Hits += n.Hits
			c.Missed += n.Missed
			c.Lost += n.Lost
		}
		all = append(all, c)
	}
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	for _, c := range all {
		c.Histograms = in.set.Histograms(c.Group, c.Name)
		f(c)
	}
}
