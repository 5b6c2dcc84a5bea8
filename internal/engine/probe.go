package engine

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine/handler"
	"kprobes.dev/kprobes/internal/errno"
)

// What a probe has called, and a call of a function as handlers are told of it.
type (
	Handlers = handler.Handlers
	Call     = handler.Call
	Misses   = handler.Misses
)

// ProbeOptions are the choices of NewProbe.
type ProbeOptions struct {
	Return    bool // a return probe
	MaxActive int  // the most calls that a return probe follows; 0: as many as the target's pool holds
	DataSize  int  // bytes of each call's Data
	Disabled  bool // it is registered without being armed
	Sleepable bool // its handlers may block
}

// Probe is a probe with handlers.
type Probe struct {
	core *Core
	def  *event.Def
	ev   *Event
	h    *handler.Runner
	// mayLeave: what keeps the probe from being registered leaves it out of its batch, and is left.
	mayLeave bool
	left     error

	at           uint64 // the instruction
	stack, spill int    // of the arguments of Jump
	disabled     bool   // guarded by core.mu
	ended        atomic.Bool
	last         atomic.Pointer[State] // see State
}

// NewProbe makes a probe that stands at a place once it is registered.
func NewProbe(place event.Place, h Handlers, o ProbeOptions) *Probe {
	p := &Probe{disabled: o.Disabled, h: handler.New(h, handler.Options{Returns: o.Return, DataSize: o.DataSize, Sleepable: o.Sleepable})}
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
func (p *Probe) finish() {
	c := p.core
	s := p.look() // the target forgets with a call what it has missed
	c.ending.Add(1)
	p.h.Release()
	c.ending.Add(-1)
	s.Hits = p.h.Hits()
	if r := c.t.Ring(); r != nil {
		s.Hits += r.Sum(p.ev.ID).Hits
	}
	s.Registered, s.Disabled, s.Optimized, s.Tactic, s.Why = false, false, false, "", nil
	p.last.Store(&s)
	c.cool(c.retire(p.ev)...)
}

// refused is the reason why the probe can not be armed.
func (p *Probe) refused(err error) error {
	var no unix.Errno
	if errors.As(err, &no) {
		return err
	}
	return errno.Errorf(unix.EOPNOTSUPP, "%w", err)
}

// plain is the error of a definition as one who wrote none wants it: the reason, with its
// errno.
func plain(err error) error {
	var bad *event.Error
	if !errors.As(err, &bad) {
		return err
	}
	var no unix.Errno
	switch {
	case bad.Err == nil && bad.Code == event.BadRetprobe:
		return errno.Errorf(unix.EINVAL, "a return probe stands at a function's entry: leave the offset out")
	case bad.Err == nil:
		return errno.Errorf(unix.EINVAL, "%s", bad.Code.Text())
	case bad.Code == event.BadInsnBndry && !errors.Is(bad.Err, unix.EILSEQ):
		return errno.Errorf(unix.EILSEQ, "%w", bad.Err)
	case errors.As(bad.Err, &no):
		return plain(bad.Err)
	}
	return errno.Errorf(unix.EINVAL, "%w", plain(bad.Err))
}
