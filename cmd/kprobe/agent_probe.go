package main

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/agentconfig"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/metrics"
)

func newAgentProbe(is *agentconfig.Probe) *agentProbe {
	return &agentProbe{is: is, shown: map[string]*metrics.Counted{}, armed: map[*agentArmed]bool{}, hists: metrics.NewSet()}
}

// read reads what the events have counted until now.
func (a *agentArmed) read() *agentReading {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.final != nil {
		return a.final
	}
	return a.readLocked()
}

// end reads the counts for the last time: the process is not touched any more.
func (a *agentArmed) end() *agentReading {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.final = a.readLocked()
	return a.final
}

func (a *agentArmed) readLocked() *agentReading {
	r := &agentReading{}
	for _, ev := range a.evs {
		r.counts = append(r.counts, a.core.Counts(ev))
		r.disabled += oneIf(engine.OfEvent(ev).Exceeded() != nil)
	}
	for _, h := range a.hists {
		a.p.mu.Lock()
		now := h.hist.Copy()
		a.p.mu.Unlock()
		entries, dropped, ok, err := engine.Of(a.core).Histogram(h.ev)
		if ok {
			now.Load(entries, dropped)
		}
		r.hists, r.err = append(r.hists, now), errors.Join(r.err, err)
	}
	return r
}

// note notes that the probe is armed in a process, or could not be.
func (p *agentProbe) note(a *agentArmed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.armed[a] = true; len(a.evs) == 0 {
		p.failed++
	}
}

// keep keeps what a probe has counted in a process that it is taken out of. Precondition: no hits are taken any more.
func (p *agentProbe) keep(a *agentArmed) {
	last := a.end()
	hists := metrics.NewSet()
	p.showing.Lock()
	err := errors.Join(last.err, p.show(hists, a, last))
	p.showing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		err = p.hists.Join(hists)
	}
	if err != nil {
		a.p.say("histogram lost", "probe", p.is.Define, "error", err.Error())
	}
	p.counts = addEvents(p.counts, a, last)
	delete(p.armed, a)
}

// agentSums is what a probe has counted in all processes.
type agentSums struct {
	counts         []*eventCounts
	hists          *metrics.Set
	armed, failed  uint64 // processes in which it is armed, and in which it could not be
	disabledEvents uint64
}

// sums reads what the probe has counted in all processes: each counts once, while it is being left too.
func (p *agentProbe) sums() (*agentSums, error) {
	p.mu.Lock()
	live := make([]*agentArmed, 0, len(p.armed))
	for a := range p.armed {
		live = append(live, a)
	}
	out := &agentSums{hists: metrics.NewSet(), failed: p.failed}
	for _, n := range p.counts {
		one := *n
		out.counts = append(out.counts, &one)
	}
	err := out.hists.AddAll(p.hists)
	p.mu.Unlock()
	readings := make([]*agentReading, len(live))
	for i, a := range live {
		readings[i] = a.read()
		out.armed += oneIf(len(a.evs) > 0)
		out.disabledEvents += readings[i].disabled
		out.counts = addEvents(out.counts, a, readings[i])
	}
	p.showing.Lock()
	defer p.showing.Unlock()
	for i, a := range live {
		err = errors.Join(err, readings[i].err, p.show(out.hists, a, readings[i]))
	}
	out.hists.Merge()
	return out, err
}

// addEvents adds what the events of a process have counted. Counts stay in the order of groups and names.
func addEvents(to []*eventCounts, a *agentArmed, r *agentReading) []*eventCounts {
	for i, n := range r.counts {
		ev := a.evs[i]
		at, ok := slices.BinarySearchFunc(to, ev, func(n *eventCounts, ev *kprobes.Event) int {
			return cmp.Or(cmp.Compare(n.group, ev.Group), cmp.Compare(n.name, ev.Name))
		})
		if !ok {
			to = slices.Insert(to, at, &eventCounts{group: ev.Group, name: ev.Name})
		}
		addCounts(&to[at].Counts, n)
		to[at].filtered = to[at].filtered || ev.Def.Filter != ""
	}
	return to
}

// show makes series of the histograms in one process. Precondition: p.showing is held.
func (p *agentProbe) show(to *metrics.Set, a *agentArmed, r *agentReading) error {
	var errs []error
	for i, h := range a.hists {
		key := h.group + "/" + h.name
		c := p.shown[key]
		if c == nil {
			c = &metrics.Counted{Labels: p.labels(a.p.t, h.group, h.name), Unit: unitsOf(h.ev.Def), Max: defaultSeries}
			p.shown[key] = c
		}
		c.Symbol = engine.Of(a.core).Symbol
		errs = append(errs, c.Add(to, r.hists[i]))
	}
	return errors.Join(errs...)
}

// unitsOf says what 1 of an argument stands for; 0: it is no time.
func unitsOf(d *event.Def) func(string) time.Duration {
	return func(field string) time.Duration {
		if slices.ContainsFunc(d.Args, func(a event.Arg) bool { return a.Name == field && a.Expr.Kind == event.ExprDuration }) {
			return time.Nanosecond
		}
		return 0
	}
}
