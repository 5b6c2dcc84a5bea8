package engine

import (
	"errors"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// Check says why Add would refuse a definition: see kprobes.Core.Check.
func (c *Core) Check(d *event.Def, o *AddOptions) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o == nil {
		o = &AddOptions{}
	}
	if d.Place.Glob {
		return d.Refuse(event.BadProbeAddr, d.Place.Pos, "",
			errno.Errorf(unix.EINVAL, "the pattern %q stands for many events: define each by its function's name", d.Place.Symbol))
	}
	one := *d
	one.Name = "" // whether the name is free is not asked here
	evs, err := c.define(&one, o)
	for _, e := range evs {
		err = c.checked(e, err)
		c.namer.Release(e.Name)
	}
	return err
}

// checked says why an event that is not to be added can not be armed; err is why it could not be made. Its function is forgotten if
// nobody else has probes there. Precondition: mu is held.
func (c *Core) checked(e *Event, err error) error {
	if err == nil && !e.gone && !e.watches() {
		err = c.plannable(e)
	}
	if e.fn != nil && len(e.fn.events)+len(e.fn.sites) == 0 {
		delete(c.fns, e.fn.Start)
	}
	return err
}

// plannable says why no tactic, and no uprobe either, serves the event. The own process has no uprobes.
func (c *Core) plannable(e *Event) error {
	f, was, jumpOnly := e.fn, e.fn.constraints, e.fn.jumpOnly
	f.take(e)
	f.constraints = constraints{force: regionTactic(e.force)}
	if c.can.Own {
		f.constraints = c.constraintsOf(f, &AddOptions{Tactic: e.force})
	}
	defer func() {
		f.drop(e)
		f.constraints, f.jumpOnly = was, jumpOnly
	}()
	if err := f.serves(e); errors.Is(err, arch.ErrUnprobeable) || c.can.Own && err != nil {
		return e.refused(err)
	}
	return nil
}

// Symbol finds the function at a run-time address of the target. It takes no lock.
func (c *Core) Symbol(addr uint64) (s fetch.Sym, ok bool) {
	space := c.space.Load()
	if space == nil {
		return fetch.Sym{}, false
	}
	l, ok := space.SymbolAt(addr)
	if !ok {
		return fetch.Sym{}, false
	}
	s = fetch.Sym{Name: l.Name, Pretty: l.Func.Pretty(), Off: l.Off, Size: l.Size}
	if !l.Module.Main {
		s.Module = l.Module.Name
	}
	return s, true
}
