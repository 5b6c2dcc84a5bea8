package engine

import (
	"time"

	"kprobes.dev/kprobes/internal/arch"
)

// State tells of a probe how it is armed and what it has counted since registration.
type State struct {
	Registered bool
	Disabled   bool   // it does not run before it is enabled
	Optimized  bool   // as Linux says it: by jump, and a changed path is not taken
	Gone       bool   // its object is not mapped any more
	Tactic     Tactic // how it gets control; "" while it is not armed
	Why        error  // why not by a faster tactic, or why it was taken out; nil for the fastest
	Hits       uint64 // runs of its handlers; of a return probe returns
	Misses     Misses
	Unwound    uint64 // calls that will never return, see Kretprobe.Unwound
	// Active are calls of a return probe that have begun and of whose end nothing is known: in
	// progress some milliseconds ago, or when the probe was disabled or unregistered. Calls that
	// were left are among them until they are found, which takes about a minute at most: then
	// they are Unwound. Entries are Hits + Unwound + Active + Misses and the calls that
	// EntryHandler let go.
	Active uint64
	// Returns is how a return probe sees its function return, WhyReturns why not at the exits,
	// and Strays the number of returns that belonged to no call (Counts.Strays).
	Returns    Returns
	WhyReturns error
	Strays     uint64
}

// State tells how the probe is armed and what it has counted. Within a handler, and where one is waited for, it is the
// last that was told outside.
func (p *Probe) State() State {
	c := p.core
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
	s := p.look()
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
func (p *Probe) look() State {
	e := p.ev
	s := State{
		Registered: true, Disabled: p.disabled || p.h.Off(), Gone: e.gone,
		Hits: p.h.Hits(), Misses: p.h.Misses(), Unwound: uint64(e.unwound) + e.reaped,
		Active: uint64(e.active) + e.cut + p.core.inProgress(e),
	}
	s.Returns, s.WhyReturns = e.returns()
	p.core.lookForStrays(e)
	s.Strays = e.strays
	if !e.idle() && !e.gone {
		s.Tactic, s.Why, s.Optimized = e.form.tactic, e.form.why, e.form.tactic == arch.TacticJump && e.plain() == nil
	}
	if e.withdrawn != nil {
		s.Why = e.withdrawn
	}
	if r := p.core.t.Ring(); r != nil {
		n := r.Sum(e.ID)
		s.Hits += n.Hits
		s.Misses.Pool += n.Missed
		s.Unwound += n.Unwound
	}
	return s
}
