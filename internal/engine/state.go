package engine

import (
	"time"

	"kprobes.dev/kprobes/internal/arch"
)

// State tells how the probe is armed and what it has counted. Within a handler, and where one is waited for, it is the
// last that was told outside.
func (c *Core) State(p *Probe) State {
	if p.ended.Load() || c.inHandler() {
		return p.lastState()
	}
	for !c.mu.TryLock() {
		if c.ending.Load() > 0 {
			return p.lastState()
		}
		time.Sleep(100 * time.Microsecond)
	}
	defer c.mu.Unlock()
	if p.ended.Load() {
		return p.lastState()
	}
	s := c.look(p)
	p.last.Store(&s)
	return s
}

func (p *Probe) lastState() State {
	var s State
	if last := p.last.Load(); last != nil {
		s = *last
	}
	if s.Registered && p.h.Off() {
		s.Disabled = true // whatever was so when that was told
	}
	return s
}

// look makes the State. Precondition: core.mu is held.
func (c *Core) look(p *Probe) State {
	e := p.ev
	s := State{
		Registered: true, Disabled: p.disabled || p.h.Off(), Gone: e.gone,
		Hits: p.h.Hits(), Misses: p.h.Misses(),
	}
	s.Active, s.Unwound = e.calls.Counts()
	s.Active += c.reclaimer.Taken(e.calls)
	s.Returns, s.WhyReturns = e.returns()
	c.lookForStrays(e)
	s.Strays = e.strays
	if !e.idle() && !e.gone {
		s.Tactic, s.Why, s.Optimized = e.form.tactic, e.form.why, e.form.tactic == arch.TacticJump && e.plain() == nil
	}
	if e.withdrawn != nil {
		s.Why = e.withdrawn
	}
	if r := c.t.Ring(); r != nil {
		n := r.Sum(e.ID)
		s.Hits += n.Hits
		s.Misses.Pool += n.Missed
		s.Unwound += n.Unwound
	}
	return s
}
