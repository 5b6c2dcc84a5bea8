// Package change has what becomes of a function's sites when probes come, go or change, step by step, and the queue of
// functions of which a part has to wait.
//
//	Planned ──► Committed
//	   │  ▲         ▲
//	   ▼  │ again   │
//	Blocked ────────┘ by the optimiser, which has the function in its Queue
package change

import (
	"iter"

	"kprobes.dev/kprobes/internal/target"
)

// State is how far a change has come.
type State uint8

// The states of a change.
const (
	Planned   State = iota // its code is made; the target has the old sites
	Blocked                // the last attempt left it out: a thread is in the way. The target has the old sites
	Committed              // the target has the new sites
)

// Change is the change of one function's sites: Remove go and Add come, in one stop.
type Change struct {
	Add, Remove []*target.Site
	// Whole changes are made together, or the attempt fails: something that the old sites do must end. The target may
	// leave out each of the others.
	Whole bool

	committed bool
	group     target.Group // of one that is not Whole
}

// State tells how far the change has come.
func (c *Change) State() State {
	switch {
	case c.committed:
		return Committed
	case c.Why() != nil:
		return Blocked
	}
	return Planned
}

// Why is what keeps the change from being made; nil if nothing is known to.
func (c *Change) Why() error {
	if c.Whole {
		return nil
	}
	return c.group.Blocked
}

// Block notes why the change was not made.
func (c *Change) Block(why error) { c.group.Blocked = why }

// Commit notes that an attempt was made. True: the change is committed by it.
func (c *Change) Commit() bool {
	if c.committed || c.Why() != nil {
		return false
	}
	c.committed = true
	return true
}

// Empty says whether nothing of the target changes.
func (c *Change) Empty() bool { return len(c.Add)+len(c.Remove) == 0 }

// All is what is left of changes as one for the target, for one attempt. then and once are those of target.Change. work says
// whether there is something to do for the target.
func All(cs iter.Seq[*Change], then func() error, once bool) (all *target.Change, work bool) {
	all, work = &target.Change{Then: then, Once: once}, then != nil
	for c := range cs {
		if c.committed {
			continue
		}
		work = work || !c.Empty()
		if c.Whole {
			all.Add, all.Remove = append(all.Add, c.Add...), append(all.Remove, c.Remove...)
			continue
		}
		c.group = target.Group{Add: c.Add, Remove: c.Remove}
		if !c.Empty() {
			all.Groups = append(all.Groups, &c.group)
		}
	}
	return all, work
}
