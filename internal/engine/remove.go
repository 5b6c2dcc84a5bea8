package engine

import (
	"slices"

	"kprobes.dev/kprobes/event"
)

// Remove disarms events and forgets them.
func (c *Core) Remove(evs []*Event) error {
	c.mu.Lock()
	defer c.unlock()
	return c.remove(evs, stopping{then: c.reclaimer.InStop(callsOf(evs))})
}

// remove disarms events, in one stop. Where that has an end the engine's own probes come last.
func (c *Core) remove(evs []*Event, also stopping) error {
	fns := c.owing()
	inFlight, counters := c.pendingInFlight, c.pendingCounters
	c.pendingInFlight, c.pendingCounters = nil, nil
	for _, e := range evs {
		if e.ended {
			continue
		}
		c.discharge(e)
		if e.h == nil && !e.internalProbe && (e.Prog == nil || e.work.CountPassing) && e.Def.Kind == event.Probe {
			counters = append(counters, e)
		}
		if e.h == nil && e.calls != nil {
			inFlight = append(inFlight, e)
		}
		e.release()
		c.namer(e.Def).Release(e.Name)
		if e.fn != nil {
			e.fn.drop(e)
			fns[e.fn] = true
		}
	}
	if len(fns) == 0 {
		c.removed(inFlight, counters)
		if also.then != nil {
			return also.then()
		}
		return nil
	}
	now := sortedFunctions(fns)
	if also.end != nil {
		now, also.last = c.ownLast(now)
	}
	if err := c.update(now, also); err != nil {
		c.pendingRemoval, c.pendingInFlight, c.pendingCounters = fns, inFlight, counters
		return err
	}
	for _, e := range counters { // they are kept for their counts
		if !e.serves() {
			e.fn = nil
		}
	}
	c.removed(inFlight, counters)
	return nil
}

// removed notes that the code of events without handlers is out: of those that may have instances, and of those that only
// counted.
func (c *Core) removed(inFlight, counters []*Event) {
	for _, e := range counters {
		c.numbers.Count(e.ID)
	}
	c.endCalls(inFlight...)
}

// ownLast sorts functions into those without probes of the engine's own that other code relies on, and those with them.
func (c *Core) ownLast(fns []*function) (others, own []*function) {
	for _, f := range fns {
		if slices.ContainsFunc(c.sharing, func(e *Event) bool { return e.fn == f }) {
			own = append(own, f)
		} else {
			others = append(others, f)
		}
	}
	return others, own
}

// owing are the functions whose code does the work of events that are gone: it could not be taken
// out with them.
func (c *Core) owing() map[*function]bool {
	fns := map[*function]bool{}
	for f := range c.pendingRemoval {
		if f.mustChange() {
			fns[f] = true
		}
	}
	c.pendingRemoval = nil
	return fns
}
