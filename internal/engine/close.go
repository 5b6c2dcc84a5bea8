package engine

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes/internal/target"
)

// Close disarms every event, reads what is left and takes everything out of the target.
func (c *Core) Close(f func(*hit.Hit)) error {
	c.mu.Lock()
	defer c.unlock()
	if f == nil {
		f = func(*hit.Hit) {}
	}
	c.stopOptimizing()
	also := stopping{then: func() error { return c.reclaimer.Classify(callsOf(c.events)) }}
	if t := c.can.Sequencer; t != nil && len(c.stubbed.walkers) == 0 {
		also.end = t.CloseStopped
	}
	var live []*Event
	for _, e := range c.events {
		if e != nil && !e.ended && (also.end != nil || !slices.Contains(c.sharing, e)) && (e.fn == nil || c.stubbed.walkers[e.fn.Start] != e) {
			live = append(live, e)
		}
	}
	err := errors.Join(c.dropStubs(), c.remove(live, also))
	for try := 1; err != nil && !errors.Is(err, target.ErrGone) && try < addTries && c.moved(err); try++ {
		err = c.remove(live, also) // without what was in objects that have gone
	}
	if len(c.stubbed.walkers) > 0 && err == nil {
		err = c.putBack()
	}
	if len(c.sharing) > 0 && err == nil { // no code is left that relies on them
		err = c.remove(c.sharing, stopping{})
	}
	if errors.Is(err, target.ErrGone) {
		err = nil
	}
	c.closeProbes(live, err != nil)
	return errors.Join(err, c.records.Close(f))
}

// closeProbes ends the probes when the Core is closed; left is what has not been taken out.
func (c *Core) closeProbes(live []*Event, left bool) {
	for _, e := range live {
		if e.h == nil {
			continue
		}
		e.h.ended.Store(true)
		if left {
			e.h.h.Stop()
		}
		if !left {
			c.finish(e.h)
		}
	}
	for _, p := range c.stuck {
		if !left {
			c.finish(p)
		}
	}
	c.reclaimer.Close()
	c.stuck, c.shut = nil, true
}
