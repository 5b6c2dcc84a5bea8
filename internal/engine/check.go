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
	evs, err := c.tryDefine(d, o)
	for _, e := range evs {
		err = c.checked(e, err)
	}
	c.undefine(evs)
	return err
}

// Compiled is the program that a definition would be compiled to: nil while its place is not there. Errors: those of Check.
func (c *Core) Compiled(d *event.Def) (p *fetch.Program, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	evs, err := c.tryDefine(d, &AddOptions{Late: true})
	if err == nil && len(evs) > 0 {
		p = evs[0].Prog
	}
	c.undefine(evs)
	return p, err
}

// tryDefine makes the events of a definition, which undefine takes back. Whether its name is free is not asked.
func (c *Core) tryDefine(d *event.Def, o *AddOptions) ([]*Event, error) {
	one := *d
	one.Name = ""
	return c.define(&one, o)
}

// undefine takes back the events of tryDefine.
func (c *Core) undefine(evs []*Event) {
	for _, e := range evs {
		c.namer(e.Def).Release(e.Name)
		c.forgetUnused(e)
	}
}

// checked says why an event that is not to be added can not be armed; err is why it could not be made. Its function is forgotten if
// nobody else has probes there. Precondition: mu is held.
func (c *Core) checked(e *Event, err error) error {
	if err == nil && !e.gone && !e.watches() {
		err = c.plannable(e)
	}
	c.forgetUnused(e)
	return err
}

// forgetUnused forgets the function of an event that is not added, unless others have probes there.
func (c *Core) forgetUnused(e *Event) {
	if e.fn != nil && len(e.fn.events)+len(e.fn.sites) == 0 {
		delete(c.fns, e.fn.Start)
	}
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
