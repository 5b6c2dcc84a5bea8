package engine

import (
	"cmp"
	"slices"
)

// take adds an event.
func (f *function) take(e *Event) {
	if len(f.events) == 0 {
		f.events = f.one.events[:0]
	}
	f.events = append(f.events, e)
	f.posts += e.posts()
}

func (f *function) drop(e *Event) {
	if i := slices.Index(f.events, e); i >= 0 {
		f.events = slices.Delete(f.events, i, i+1)
		f.posts -= e.posts()
	}
}

// heldPoints are the instructions at which the kernel holds a probe.
func (f *function) heldPoints() []uint64 {
	var out []uint64
	for _, e := range f.events {
		if e.held != nil {
			out = append(out, e.points...)
		}
	}
	return out
}

// lapse is that of all events that code of the function does the work of.
func (f *function) lapse() {
	for _, s := range f.serving {
		s.e.lapse()
	}
}

// noTraps says why no breakpoint may stand in the function now, nil if one may. The tactic asks for
// them by name, and the knob asks for all that may stand.
func (f *function) noTraps() error {
	if f.constraints.force != "" || f.knobs != nil && f.knobs.optimizationOff {
		return f.constraints.named
	}
	return f.constraints.unasked
}

// mustChange says whether the function's sites do something that its events do not want any
// more.
func (f *function) mustChange() bool {
	for _, s := range f.serving {
		if e := s.e; e.idle() || e.leaving != nil && e.leaving.owes() || !slices.Contains(f.events, e) || e.h != nil && e.h.h.Calls() != *s.n {
			return true
		}
	}
	return false
}

// mayTrap says whether breakpoints may stand in the function in place of jumps.
func (f *function) mayTrap() bool {
	return f.noTraps() == nil && f.constraints.force == "" && !f.jumpOnly
}

func byStart(a, b *function) int { return cmp.Compare(a.Start, b.Start) }

func sortedFunctions(m map[*function]bool) []*function {
	out := make([]*function, 0, len(m))
	for f := range m {
		out = append(out, f)
	}
	slices.SortFunc(out, byStart)
	return out
}
