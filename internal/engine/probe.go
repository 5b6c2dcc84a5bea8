package engine

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine/handler"
)

// ProbeOptions are the choices of NewProbe.
type ProbeOptions struct {
	Return    bool // a return probe
	MaxActive int  // the most calls that a return probe follows; 0: as many as the target's pool holds
	DataSize  int  // bytes of each call's Data
	Disabled  bool // it is registered without being armed
	Sleepable bool // its handlers may block
	Internal  bool // it is the engine's own: it is in no list, and no knob disarms it
}

// NewProbe makes a probe that stands at a place once it is registered.
func NewProbe(place event.Place, h Handlers, o ProbeOptions) *Probe {
	p := &Probe{disabled: o.Disabled, internal: o.Internal, h: handler.New(h, handler.Options{Returns: o.Return, DataSize: o.DataSize, Sleepable: o.Sleepable})}
	p.def = &event.Def{Kind: event.Probe, Place: place, MaxActive: o.MaxActive}
	if o.Return {
		p.def.Kind = event.Return
	}
	return p
}

// Ended says whether the probe was registered and is not any more.
func (p *Probe) Ended() bool { return p.ended.Load() }

// Refused is why Register has left the probe out.
func (p *Probe) Refused() error { return p.left }

// Fault tells what went wrong in a handler since the probe was registered or enabled; nil if nothing did.
func (p *Probe) Fault() error { return p.h.Err() }

// finish gives back what the handlers used. Precondition: no site's code uses them, and
// core.mu is held.
func (c *Core) finish(p *Probe) {
	s := c.look(p) // the target forgets with a call what it has missed
	c.ending.Add(1)
	p.h.Release()
	c.ending.Add(-1)
	s.Hits = p.h.Hits()
	if r := c.t.Ring(); r != nil {
		s.Hits += r.Sum(p.ev.ID).Hits
	}
	s.Registered, s.Disabled, s.Optimized, s.Tactic, s.Why = false, false, false, "", nil
	p.last.Store(&s)
	c.numbers.Cool(c.retire(p.ev)...)
}
