package engine

import (
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// keepEvery is how often the reaper looks whether there is something to be done.
const keepEvery = 100 * time.Millisecond

// startReaper starts the goroutine that takes out of the target what could not be taken out where
// it became due: probes whose handlers went wrong, stuck ones, and instances of calls that are
// over. It runs while there are probes with handlers or on returns. Precondition: mu is held.
func (c *Core) startReaper() {
	if c.keeping {
		return
	}
	c.keeping = true
	go func() {
		for seen := uint64(0); ; {
			time.Sleep(keepEvery)
			c.mu.Lock()
			if n := c.faults.Load(); n != seen || len(c.stuck) > 0 {
				if c.disableFaulted() {
					seen = n
				}
			}
			c.takeBack()
			c.syncStubs()
			c.keepWatching()
			c.keeping = c.needsKeep()
			done := !c.keeping
			c.unlock()
			if done {
				return
			}
		}
	}()
}

// needsKeep says whether the reaper may have something to do.
func (c *Core) needsKeep() bool {
	if c.shut {
		return false
	}
	return len(c.reaping.left) > 0 || c.watches() || slices.ContainsFunc(c.events, func(e *Event) bool {
		return e != nil && (e.h != nil || !e.ended && e.work.Pool != nil)
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
	c.tidying = true
	defer func() { c.tidying = false }()
	ok := len(bad) == 0 || c.setDisabled(bad, true, false) == nil
	if len(c.stuck) == 0 {
		return ok
	}
	err := c.update(functionsOf(eventsOf(c.stuck)), stopping{})
	if err != nil && !errors.Is(err, target.ErrGone) {
		return false
	}
	for _, p := range c.stuck {
		p.finish()
	}
	c.stuck = nil
	return ok
}
