package engine

import (
	"errors"
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// Unregister disarms probes: those for which which calls end. It does so while nothing else changes.
func (c *Core) Unregister(which func(end func(*Probe))) {
	if c.inHandler() {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	var ps []*Probe
	which(func(p *Probe) {
		if p.knobs == &c.knobs && p.ev != nil && !p.ended.Load() {
			p.ended.Store(true)
			ps = append(ps, p)
		}
	})
	c.takeOut(ps)
}

// Attempts at taking code out that must go out.
const (
	takeOutTries = 10
	takeOutPause = 10 * time.Millisecond
)

// takeOut disarms probes. What can not be taken out of the target now does nothing any
// more, and is taken out by the reaper.
func (c *Core) takeOut(ps []*Probe) {
	if len(ps) == 0 {
		return
	}
	evs := eventsOf(ps)
	err := c.remove(evs, stopping{then: c.reclaimer.InStop(callsOf(evs))})
	for range takeOutTries {
		if err == nil || errors.Is(err, target.ErrGone) {
			break
		}
		time.Sleep(takeOutPause)
		err = c.update(functionsOf(evs), stopping{})
	}
	for _, p := range ps {
		if err == nil || errors.Is(err, target.ErrGone) {
			c.finish(p)
			continue
		}
		c.waitHandlers([]*Probe{p})
		c.stuck = append(c.stuck, p)
	}
}
