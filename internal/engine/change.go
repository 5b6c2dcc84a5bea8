package engine

import (
	"iter"
	"slices"

	"kprobes.dev/kprobes/internal/engine/change"
	"kprobes.dev/kprobes/internal/target"
)

// functionChange is the change of one function: of its sites, and of how its events get control.
type functionChange struct {
	change.Change
	f          *function
	now        []eventForm  // how the function's events get control by the new sites
	was        []eventForm  // before the change
	err        error        // why there are no new sites
	blockedErr error        // f.blockedErr before it
	one        [1]eventForm // room of was where the function has one event
}

// begin begins changes of functions.
func (c *Core) begin(fns []*function) []*functionChange {
	cs, room := make([]*functionChange, len(fns)), make([]functionChange, len(fns))
	for i, f := range fns {
		cs[i] = &room[i]
		cs[i].begin(f)
	}
	return cs
}

// mayTrap says whether breakpoints may stand where the change has jumps.
func (ch *functionChange) mayTrap() bool {
	return ch.f.mayTrap() && slices.ContainsFunc(ch.Add, func(s *target.Site) bool { return !s.Trap })
}

// begin begins a change of a function. One that waits already, and whose old code does what
// must end, goes on waiting: what it waits for would hold up the end.
func (ch *functionChange) begin(f *function) {
	ch.f, ch.Whole, ch.blockedErr, ch.was = f, true, f.blockedErr, ch.one[:0]
	for _, e := range f.events {
		ch.was = append(ch.was, eventForm{e, e.form})
	}
	if !f.mustChange() {
		ch.Whole, f.blockedErr = false, nil
	}
}

// mustChange says whether the function's sites do something that its events do not want any
// more.
func (f *function) mustChange() bool {
	for _, s := range f.serving {
		if e := s.e; e.idle() || !slices.Contains(f.events, e) || e.h != nil && e.h.h.Calls() != *s.n {
			return true
		}
	}
	return false
}

// blocked picks the changes that were left out.
func blocked(cs []*functionChange) []*functionChange {
	return slices.DeleteFunc(slices.Clone(cs), func(ch *functionChange) bool { return ch.Why() == nil })
}

// bases are changes as the target's functions have them at this moment.
func bases(cs []*functionChange) iter.Seq[*change.Change] {
	return func(yield func(*change.Change) bool) {
		for _, ch := range cs {
			ch.Remove = ch.f.sites
			if !yield(&ch.Change) {
				return
			}
		}
	}
}
