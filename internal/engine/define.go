package engine

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

func placeOf(d *event.Def) symbol.Place {
	p := symbol.Place{Mod: d.Place.Module, Sym: d.Place.Symbol, Offset: d.Place.Offset}
	switch d.Place.Kind {
	case event.PlaceAddr:
		p.Addr = d.Place.Addr
	case event.PlaceFile:
		p.Path, p.Addr = d.Place.Path, d.Place.Addr
	}
	return p
}

// newEvent makes an event that has no place yet.
func newEvent(d *event.Def, c *Core, o *AddOptions) *Event {
	e := &Event{Def: d, Given: d, knobs: &c.knobs, Group: d.Group, Name: d.Name, tail: -1, force: o.Tactic, wantStub: o.Trampoline, deferred: o.Late, most: o.Budget}
	e.work.Count = o.Count
	return e
}

// name gives an event its name: its own, which must be free, or one that is made up.
func (c *Core) name(e *Event) error {
	if e.Name == "" {
		e.Name = c.namer(e.Def).Name(e.Def, e.Def.Place)
		return nil
	}
	for _, o := range append(c.events, c.batch...) {
		if o != nil && !o.ended && o.sameName(e) {
			if err := e.Def.Appends(o.Def); err != nil {
				return err
			}
			break
		}
	}
	c.namer(e.Def).Reserve(e.Name)
	return nil
}

// namer knows the names of the events that the user of a definition has.
func (c *Core) namer(d *event.Def) *event.Namer {
	n := c.namers[d.User]
	if n == nil {
		n = new(event.Namer)
		if c.namers == nil {
			c.namers = map[uint32]*event.Namer{}
		}
		c.namers[d.User] = n
	}
	return n
}

// sameName says whether two events of one user have the same name.
func (e *Event) sameName(o *Event) bool {
	return e.Def.User == o.Def.User && e.Group == o.Group && e.Name == o.Name
}

// locate ties an event to a place: its function, its points and its program.
func (c *Core) locate(e *Event, r symbol.Resolved) error { return c.locateIn(e, r, nil) }

// locateIn is locate in a function that was analysed; nil: it is found out.
func (c *Core) locateIn(e *Event, r symbol.Resolved, f *function) error {
	d := e.Def
	if d.Kind == event.Watch {
		return c.locateWatch(e, r)
	}
	if r.Func == nil {
		return d.Refuse(event.BadProbeAddr, d.Place.Pos, "", errno.Errorf(unix.EINVAL, "no function is known around 0x%x, so its code can not be followed", r.Addr))
	}
	r, err := c.scan.Implementation(r)
	if err != nil {
		return d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
	}
	if err := c.blacklisted(r); err != nil {
		return d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
	}
	if f == nil {
		if f, err = c.function(r); err != nil {
			return d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
		}
	}
	if t := c.can.Describer; t != nil && e.h == nil {
		if err := t.Notrace(r); err != nil {
			return d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
		}
	}
	e.Place, e.fn = r, f
	at, err := c.points(e)
	if err == nil {
		err = c.inPlace(e)
	}
	if err != nil {
		return err
	}
	if e.counts() && d.Stack > 0 {
		return errno.Errorf(unix.EOPNOTSUPP, "an event that only counts has no record that could hold a stack; record it")
	}
	if e.counts() && d.Filter == "" {
		return nil
	}
	e.Prog, err = fetch.Compile(d, c.env(e), at)
	e.work.Prog = e.Prog
	if err == nil && d.Stack > 0 {
		if err = c.stackOf(e); err != nil {
			err = d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
		}
	}
	if err == nil && d.Filter != "" {
		err = c.compileFilter(e)
	}
	if err == nil && e.counts() {
		return countPassing(e)
	}
	if err == nil && d.Hist != nil {
		c.takeHist(e)
	}
	return err
}

// inPlace refuses an event at an instruction that no tactic may run elsewhere.
func (c *Core) inPlace(e *Event) error {
	t := c.can.Describer
	for _, p := range e.points {
		if t != nil {
			if err := t.InsnDenied(p); err != nil {
				return e.refused(fmt.Errorf("%s+0x%x: %w", e.fn.Name, p-e.fn.Start, err))
			}
		}
		if slices.ContainsFunc(e.fn.Keep, func(r interval.Range) bool { return r.Contains(p) }) {
			return e.refused(errno.Errorf(unix.EINVAL, "%s+0x%x belongs to a restartable sequence (rseq), which the kernel starts anew only where it stands",
				e.fn.Name, p-e.fn.Start))
		}
	}
	return nil
}

// points finds the instructions at which the event's work is done.
func (c *Core) points(e *Event) (fetch.Point, error) {
	d := e.Def
	if d.Kind == event.Return {
		if !e.atEntry() {
			return 0, d.Refuse(event.BadRetprobe, d.Place.Pos, "a return probe belongs to a function, not to an instruction in it", nil)
		}
		var err error
		if e.points, err = c.returnPoints(e); err != nil {
			return 0, d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
		}
		return fetch.PointReturn, nil
	}
	if e.inlined == "" && (e.Place.Addr == e.fn.Start || e.Place.Addr == e.fn.Code.EntryPoint()) {
		e.setPoint(e.fn.Code.EntryPoint())
		return fetch.PointEntry, nil
	}
	if err := e.fn.Code.Check(e.Place.Addr); err != nil {
		return 0, d.Refuse(event.BadInsnBndry, d.Place.Pos, "", err)
	}
	e.setPoint(e.Place.Addr)
	return fetch.PointInside, nil
}

// functionAt finds the function that has a name, or that an address lies in where the name is "": .function in a filter.
func (c *Core) functionAt(name string, addr uint64) (start, end uint64, ok bool) {
	sp := c.t.Space()
	if name != "" {
		d, err := event.Parse("p " + name)
		if err != nil {
			return 0, 0, false
		}
		r, err := sp.Resolve(placeOf(d))
		if err != nil {
			return 0, 0, false
		}
		addr = r.Addr
	}
	at, ok := sp.SymbolAt(addr)
	if !ok || at.Size == 0 {
		return 0, 0, false
	}
	return addr - at.Off, addr - at.Off + at.Size, true
}
