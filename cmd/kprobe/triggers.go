package main

import (
	"errors"
	"fmt"
	"strings"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// parseTriggers parses the triggers of the command line, in its order: every bad one is reported. defs and events are as probe takes them.
func (f *traceFlags) parseTriggers(defs []*event.Def, events int) error {
	var errs []error
	for i := range f.triggers {
		b := &f.triggers[i]
		d := b.probe(defs, events)
		if d == nil {
			return usagef("-R %q: no probe stands before it", b.text)
		}
		t, err := event.ParseTrigger(b.text)
		if err == nil && t.Command == event.TriggerHist && f.format == "json" {
			err = fmt.Errorf("-R %q: a histogram is printed as text: leave out --format json", b.text)
		}
		errs = append(errs, err)
		f.bound = append(f.bound, boundTrigger{d, t})
	}
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// triggerStacks has definitions record what their triggers need of the stack: also those of other probes of the same event.
func (f *traceFlags) triggerStacks(defs []*event.Def) {
	for _, b := range f.bound {
		need := 0
		switch {
		case b.trigger.Command == event.TriggerStacktrace:
			need = defaultCallers
		case b.trigger.Command == event.TriggerHist && needsStack(b.trigger.Hist):
			need = event.HistCallers
		}
		for _, d := range defs {
			if d == b.def || d.Name != "" && d.Group == b.def.Group && d.Name == b.def.Name {
				d.Stack = max(d.Stack, need)
			}
		}
	}
}

// triggering runs the triggers of the verb trace.
type triggering struct {
	t       *tracing
	set     *hit.Triggers
	filters map[*event.Def]string // of probes with triggers, which act at hits that do not pass, too
	hists   []shown
}

// newTriggering has a trace run the triggers of its flags. Precondition: definitions has parsed them.
func newTriggering(t *tracing) *triggering {
	g := &triggering{t: t, set: hit.NewTriggers(), filters: map[*event.Def]string{}}
	t.added, t.left, t.sum = g.prepare, g.print, g.sum
	for _, b := range t.f.bound {
		if b.def.Filter != "" {
			g.filters[b.def], b.def.Filter = b.def.Filter, ""
		}
	}
	return g
}

// prepare adds the triggers to the events of their probes.
func (g *triggering) prepare(s tracee) error {
	p, ok := s.(interface {
		Events() []*kprobes.Event
		Core() *kprobes.Core
	})
	if !ok {
		return usagef("there are no triggers of this target")
	}
	core := engine.Of(p.Core())
	for _, e := range p.Events() {
		ev := engine.OfEvent(e)
		g.set.Event(e.Group, e.Name, ev.Prog, func(filter string) (*fetch.Filter, error) {
			if ev.Prog == nil {
				return nil, fmt.Errorf("%s: its object is not there: a filter of a trigger, or beside one, needs it", e.Name)
			}
			return core.FilterOf(ev, filter)
		})
	}
	for _, e := range p.Events() {
		if text := g.filters[engine.OfEvent(e).Given]; text != "" {
			if err := g.set.Filter(e.Group, e.Name, text); err != nil {
				return err
			}
		}
	}
	for _, b := range g.t.f.bound {
		if err := g.add(b, p.Events()); err != nil {
			return err
		}
	}
	return nil
}

// add adds a trigger: of a pattern's, one for each event. Probes that share a name are one event.
func (g *triggering) add(b boundTrigger, evs []*kprobes.Event) error {
	first, done := len(g.hists), map[string]bool{}
	for _, e := range evs {
		ev := engine.OfEvent(e)
		if ev.Given != b.def || done[e.Name] {
			continue
		}
		done[e.Name] = true
		if b.trigger.Hist != nil && ev.Prog == nil {
			return fmt.Errorf("%s: its object is not there: a histogram needs it", e.Name)
		}
		h, err := g.set.Add(e.Group, e.Name, b.trigger)
		var bad *event.FilterError
		switch {
		case errors.As(err, &bad): // what a filter may name depends on the target
			return err
		case err != nil:
			return usageError{err}
		case h != nil:
			g.hists = append(g.hists, shown{name: e.Group + "/" + e.Name, hist: h})
		}
	}
	for i := first; i < len(g.hists); i++ {
		g.hists[i].many = len(g.hists)-first > 1
	}
	return nil
}

// hit runs the triggers of a hit, and prints what is shown of it.
func (g *triggering) hit(h *hit.Hit) {
	v := g.set.Hit(h, g.t.printed.print.Names)
	h.NoStack = g.t.f.stack == 0 && !v.Stack
	switch {
	case v.Line:
		g.t.printed.hit(h)
	case v.Stack:
		g.t.printed.stack(h)
	}
}

// print prints the histograms.
func (g *triggering) print() { g.t.printed.histograms(g.hists) }

// sum tells how many hits did not pass the filters.
func (g *triggering) sum(all []*total) {
	for _, s := range all {
		group, name, _ := strings.Cut(s.Event, "/")
		if n, ok := g.set.Filtered(group, name); ok {
			s.Filtered = &n
		}
	}
}
