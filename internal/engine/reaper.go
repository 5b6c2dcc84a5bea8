package engine

import (
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// reapOnce is what the reaper does each time. more: it may have something to do later.
func (c *Core) reapOnce() (more bool) {
	if n := c.faults.Load(); n != c.seenFaults || len(c.stuck) > 0 {
		if c.disableFaulted() {
			c.seenFaults = n
		}
	}
	c.reclaimer.Reclaim()
	if c.budgets.refill != nil {
		c.budgets.refill()
	}
	c.syncStubs()
	c.keepWatching()
	return c.needsKeep()
}

// needsKeep says whether the reaper may have something to do.
func (c *Core) needsKeep() bool {
	if c.shut {
		return false
	}
	return c.reclaimer.Waiting() || c.watches() || len(c.budgets.given) > 0 || slices.ContainsFunc(c.events, func(e *Event) bool {
		return e != nil && (e.h != nil || !e.ended && e.calls != nil)
	})
}

// disableFaulted disarms what went wrong; false: it is to be tried again.
func (c *Core) disableFaulted() bool {
	var bad []*Probe
	for _, e := range c.events {
		if e != nil && e.h != nil && !e.ended && !e.h.disabled && e.h.h.Faulty() {
			bad = append(bad, e.h)
		}
	}
	ok := len(bad) == 0 || c.setDisabled(bad, true, false) == nil
	if len(c.stuck) == 0 {
		return ok
	}
	err := c.update(functionsOf(eventsOf(c.stuck)), stopping{})
	if err != nil && !errors.Is(err, target.ErrGone) {
		return false
	}
	for _, p := range c.stuck {
		c.finish(p)
	}
	c.stuck = nil
	return ok
}

// replaced forgets a function that has no events any more, and has the reaper look from now on where others can write into
// the patches that a change has put in.
func (c *Core) replaced(f *function) {
	if len(f.events) == 0 && c.fns[f.Start] == f { // it may have been taken out before, and another be there
		delete(c.fns, f.Start)
	}
	if len(f.sites) == 0 {
		return
	}
	c.watching.stale = true
	if c.can.Exposed != nil {
		c.startReaper()
	}
}

// startReaper starts the goroutine that takes out of the target what could not be taken out where
// it became due: probes whose handlers went wrong, stuck ones, and instances of calls that are
// over. It runs while there are probes with handlers or on returns. Precondition: mu is held.
func (c *Core) startReaper() {
	if c.keeping {
		return
	}
	c.keeping = true
	go func() {
		for {
			time.Sleep(keepEvery)
			c.mu.Lock()
			c.keeping = c.reap()
			done := !c.keeping
			c.lock.Unlock()
			if done {
				return
			}
		}
	}()
}
