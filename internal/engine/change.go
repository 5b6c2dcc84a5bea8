package engine

import (
	"iter"
	"slices"
	"sync"
	"time"

	"kprobes.dev/kprobes/internal/engine/change"
	"kprobes.dev/kprobes/internal/target"
)

// editor changes the sites of functions in the target. It serves one goroutine at a time: who holds the registry's lock.
type editor struct {
	t     target.Target
	can   target.Capabilities // of t
	knobs *knobs
	reg   registry
	room  sync.Mutex // held while the target's room for code is taken or given back

	queue     change.Queue[*function]
	timer     *time.Timer // of the optimiser's next attempt; nil: there was none
	again     func()      // that attempt
	postponed uint64      // events that had to wait, since the beginning
	// dependents adds to functions that change those whose code refers to instances of their events; nil: there are none.
	dependents func([]*function) []*function
}

// registry is who an editor works for.
type registry interface {
	// first gives changes that must stand before the first code that relies on them. They are committed with the next
	// change, before it; firstMade is told so. checkFirst is called in the stop that has made them. If they can not be made
	// so, armFirst arms them in stops of their own.
	first() ([]*functionChange, error)
	checkFirst() error
	firstMade()
	armFirst() error
	// replacing is told that the function's sites have been replaced in the target, before the function has the new ones;
	// replaced is told after that.
	replacing(f *function)
	replaced(f *function)
	// note has the target's memory tell of what waits.
	note()
}

// stopping is what else is done in the stop in which changes are made. Changes of the engine's own probes come
// before all others if they put them in, and after them if they take them out, so that a tracer that dies in between
// leaves no code that relies on them without them.
type stopping struct {
	then func() error // once the changes are made; nil: nothing
	last []*function  // whose changes come after the others, for a target.Sequencer
	end  func()       // once these are made
}

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
func (ed *editor) begin(fns []*function) []*functionChange {
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
