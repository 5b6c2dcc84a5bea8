package engine

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Closed says whether the Core is closed, or is being closed.
func (c *Core) Closed() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.closing
}

// Target is what the Core probes.
func (c *Core) Target() target.Target { return c.t }

// Events lists the events in the order of their numbers, removed ones too.
func (c *Core) Events() []*Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*Event
	for _, e := range c.events {
		if e != nil && !e.internalProbe && e.h == nil {
			out = append(out, e)
		}
	}
	return out
}

// Outside refuses what a handler must not do.
func (c *Core) Outside() error {
	if c.inHandler() {
		return errno.Errorf(unix.EDEADLK, "called by a handler, which the change would have to wait for: do it after the handler, on a goroutine of its own")
	}
	return nil
}

// Gone says whether the event's object is not mapped at present: [GONE] in the listing.
func (e *Event) Gone() bool {
	e.knobs.mu.Lock()
	defer e.knobs.mu.Unlock()
	return e.gone
}

// At tells where the event stands, or has stood.
func (e *Event) At() Place {
	e.knobs.mu.Lock()
	defer e.knobs.mu.Unlock()
	r := e.Place
	p := Place{Addr: r.Addr, Offset: r.Offset}
	switch {
	case r.Func != nil:
		p.Symbol = r.Func.Pretty()
	case e.watches():
		p.Symbol, p.Offset = e.Def.Place.Symbol, e.Def.Place.Offset
	}
	if r.Module != nil {
		p.Module = r.Module.Name
	}
	return p
}
