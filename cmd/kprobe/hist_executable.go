package main

import (
	"fmt"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
)

// oneProcessMetrics is why -x makes no metrics.
const oneProcessMetrics = "metrics are of one process: -x has no --listen, and no --format prometheus or openmetrics"

// checkExecutable says which histograms can not be made over the processes of an executable: an address is another function in each of them.
func (g *histogramming) checkExecutable() error {
	if !g.f.every.named() {
		return nil
	}
	if g.listen != "" || isExposition(g.format) {
		return usagef("%s", oneProcessMetrics)
	}
	if g.format != histText {
		return usagef("--format %s is for one process: the callers of several have not the same addresses", g.format)
	}
	for _, one := range g.given {
		if one.hist == nil {
			continue
		}
		if needsStack(one.hist) {
			return usagef("common_stacktrace is for one process: the callers of several have not the same addresses")
		}
		for _, k := range one.hist.Keys {
			if k.Mod == event.HistSym || k.Mod == event.HistSymOffset {
				return usagef("key %s: .sym and .sym-offset are for one process: an address is another function in each", k.Name)
			}
		}
	}
	return nil
}

// prepareExecutable makes the histograms of the processes that are there already.
func (g *histogramming) prepareExecutable(x *tracedExecutable) error {
	for _, m := range x.live() {
		if err := g.meet(m); err != nil {
			return err
		}
	}
	return nil
}

// meet makes the histograms of a process's events that there are none of yet. Readers count: the memory of histograms in a process ends with it.
func (g *histogramming) meet(m *executableMember) error {
	first := len(g.shown) == 0
	for _, e := range m.p.evs {
		prog := engine.OfEvent(e).Prog
		if prog == nil {
			return fmt.Errorf("%s: its object is not there: a histogram needs it", e.Name)
		}
		if !g.set.Event(e.Group, e.Name, prog) {
			return usagef("event %s has not the same arguments in all processes: say their types, name=arg:u64", e.Name)
		}
	}
	for _, one := range g.given {
		if one.synth != nil && first {
			g.set.Synthetic(one.synth)
		}
	}
	for _, one := range g.given {
		if one.synth != nil && !first {
			continue
		}
		if err := g.add(one, m.p.evs); err != nil {
			return err
		}
	}
	for i := range g.shown {
		g.shown[i].evs = nil
	}
	m.met = true
	return nil
}

// executableHit counts a hit of one of several processes. If its histogram can not be made the command ends.
func (g *histogramming) executableHit(t *tracing, h *hit.Hit) {
	if m := hit.From(h).(*executableMember); !m.met && g.err == nil {
		if g.err = g.meet(m); g.err != nil {
			t.printed.end()
		}
	}
	if g.err == nil {
		g.hit(t, h)
	}
}
