package engine

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// define makes the events of one definition: one, or one for each function that a
// pattern matches.
func (c *Core) define(d *event.Def, o *AddOptions) ([]*Event, error) {
	evs, err := c.defineEach(d, o)
	if err != nil || !d.Function || len(evs) == 1 && !d.Place.Glob {
		return evs, err
	}
	return evs, c.nameAlike(d, evs)
}

// nameAlike makes the events of one definition one event for whoever reads their records: they have one name.
func (c *Core) nameAlike(d *event.Def, evs []*Event) error {
	for _, e := range evs {
		c.namer(d).Release(e.Name)
	}
	all := Event{Def: d, Group: d.Group, Name: d.Name}
	if err := c.name(&all); err != nil {
		return err
	}
	for i, e := range evs {
		if e.Name = all.Name; i > 0 {
			c.namer(d).Reserve(all.Name)
		}
	}
	return nil
}

// defineEach is define, with a name for each event.
func (c *Core) defineEach(d *event.Def, o *AddOptions) ([]*Event, error) {
	if d.Kind == event.Delete {
		return nil, errno.Errorf(unix.EINVAL, "definition %q deletes, and defines no probe", d.Text)
	}
	if d.Place.Kind == event.PlaceLine && (c.t.CodegenEnv().Kernel != nil || d.Kind == event.Return) {
		return nil, d.Refuse(event.NoLineTable, d.Place.Pos, "a line is a place for a probe of a program, and for no return probe: name a function, or an address", nil)
	}
	if d.Place.Kind == event.PlaceFile && c.t.CodegenEnv().Kernel != nil {
		return nil, d.Refuse(event.BadProbeAddr, d.Place.Pos, "a kernel is no file that is mapped: name a function, or an address", nil)
	}
	if err := c.forbidden(d); err != nil {
		return nil, d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
	}
	if d.Place.Glob {
		return c.defineAll(d, o)
	}
	if d.Place.Kind == event.PlaceLine {
		return c.defineLine(d, o)
	}
	r, err := c.resolve(d)
	if o.Late && errors.Is(err, symbol.ErrNoModule) {
		if err := c.mayCome(d); o.Found && err != nil {
			return nil, d.Refuse(event.BadProbeAddr, d.Place.Pos, "", err)
		}
		e := newEvent(d, c, o)
		e.gone = true
		return []*Event{e}, c.name(e)
	}
	if err != nil {
		var missing *symbol.NotFoundError
		refused := d.Refuse(placeCode(err), d.Place.Pos, "", err)
		if errors.As(err, &missing) {
			return c.onlyInlined(d, refused, o)
		}
		return nil, refused
	}
	e, err := c.defineAt(d, r, o)
	if err != nil {
		return nil, err
	}
	more, err := c.withInlined(d, r.Module, o)
	return append([]*Event{e}, more...), err
}

// mayCome says why the object of a place, which is not mapped, never will be.
func (c *Core) mayCome(d *event.Def) error {
	t := c.can.Finder
	if t == nil {
		return nil
	}
	return t.Find(cmp.Or(d.Place.Path, d.Place.Module))
}

// placeCode is the error of the kernel's table that a place's error amounts to.
func placeCode(err error) event.Code {
	var amb *symbol.AmbiguousError
	if errors.As(err, &amb) {
		return event.NonUniqSymbol
	}
	return event.BadProbeAddr
}

// defineAll makes an event for each function that matches.
func (c *Core) defineAll(d *event.Def, o *AddOptions) ([]*Event, error) {
	mods := c.t.Space().Modules()
	if d.Place.Module != "" {
		m, err := c.t.Space().Module(d.Place.Module)
		if err != nil {
			return nil, d.Refuse(event.BadProbeAddr, d.Place.Pos, "", err)
		}
		mods = []*symbol.Module{m}
	} else if len(mods) > 0 {
		mods = mods[:1] // the program's own file, as for a name without MOD
	}
	var out []*Event
	for _, m := range mods {
		fns := slices.DeleteFunc(m.Image.Glob(d.Place.Symbol), func(fn *symbol.Func) bool { return fn.PLT || !fn.Candidate() })
		evs := c.matched(m, fns, d, o)
		out = slices.Grow(out, len(evs))
		for i, fn := range fns {
			e, err := evs[i].e, evs[i].err
			switch {
			case err == nil:
				e.Name = c.namer(d).Unique(evs[i].base)
				out = append(out, e)
			case o.Skip == nil, errors.Is(err, target.ErrGone):
				return nil, err
			default:
				c.skip(d, fn.Pretty(), err, o)
			}
		}
		inlined, err := c.withInlined(d, m, o)
		if err != nil {
			return nil, err
		}
		out = append(out, inlined...)
	}
	switch {
	case len(out) > 0:
	case c.skipped[d] != nil:
		return nil, c.allSkipped(d)
	default:
		return nil, d.Refuse(event.BadProbeAddr, d.Place.Pos, "", errno.Errorf(unix.ENOENT, "no function matches %q", d.Place.Symbol))
	}
	return out, nil
}

// defineAt makes the event of a definition at a resolved place.
func (c *Core) defineAt(d *event.Def, r symbol.Resolved, o *AddOptions) (*Event, error) {
	e := newEvent(d, c, o)
	if err := c.locate(e, r); err != nil {
		return nil, err
	}
	return e, c.name(e)
}
