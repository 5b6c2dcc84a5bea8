package hit

import (
	"slices"

	"kprobes.dev/kprobes/event"
)

// same says whether a histogram is what another one's definition means: of the same name, keys, values, variables, order, filter and
// actions (hist_trigger_match in kernel/trace/trace_events_hist.c, Linux 6.18).
func (h *Histogram) same(o *Histogram) bool {
	a, b := *h.def, *o.def
	a.Size, a.NoHitcount = b.Size, b.NoHitcount
	return a.String() == b.String()
}

// change pauses, continues or clears a histogram, as a definition says.
func (h *Histogram) change(def *event.Hist) {
	switch {
	case def.Paused:
		h.paused = true
	case def.Continue:
		h.paused = false
	default:
		clear(h.entries)
		h.hits, h.dropped = 0, 0
	}
}

// varNames are the names of the variables that the definition has.
func (h *Histogram) varNames() (names []string) {
	for i := range h.def.Vars {
		names = append(names, h.def.Vars[i].Name)
	}
	return names
}

// needsStack says whether a key, a variable or what an action traces is the callers.
func (h *Histogram) needsStack() bool {
	return slices.ContainsFunc(h.keys, func(f histField) bool { return f.from == fromStack }) ||
		slices.ContainsFunc(h.vars, func(v *histVar) bool { return v.is.from == fromStack })
}

// snapshot is the action that takes one; nil: there is none.
func (h *Histogram) snapshot() *histAction {
	for _, a := range h.actions {
		if a.def.Snapshot {
			return a
		}
	}
	return nil
}

// read says whether another histogram reads a variable of this one.
func (s *Histograms) read(h *Histogram) bool {
	return slices.ContainsFunc(s.order, func(e *histEvent) bool {
		return slices.ContainsFunc(e.hists, func(o *Histogram) bool {
			return o != h && slices.ContainsFunc(o.refs, func(r *histRef) bool { return r.of == h })
		})
	})
}

// remove takes away a histogram that no other one reads.
func (s *Histograms) remove(h *Histogram) {
	is := func(o *Histogram) bool { return o == h }
	h.ev.hists = slices.DeleteFunc(h.ev.hists, is)
	if s.named[h.def.Name] != h {
		return
	}
	delete(s.named, h.def.Name)
	for _, e := range s.order { // another one of those that share the entries goes by the name now
		for _, o := range e.hists {
			if o.Shares(h) {
				s.named[h.def.Name] = o
				return
			}
		}
	}
}

// undo takes away what was made for the actions of a histogram that is refused.
func (m *histMaker) undo() {
	for _, h := range m.h.made {
		if m.set.undo != nil {
			m.set.undo(h)
		}
	}
	if m.set.named[m.def.Name] == m.h {
		delete(m.set.named, m.def.Name)
	}
}

// forget takes away an event without histograms.
func (s *Histograms) forget(key [2]string) {
	e := s.events[key]
	delete(s.events, key)
	s.order = slices.DeleteFunc(s.order, func(o *histEvent) bool { return o == e })
}
