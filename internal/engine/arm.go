package engine

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes/internal/target"
)

// arm puts new events into their functions and the functions' sites into the target.
// Events that no tactic can serve are an error, or skipped if the options say so.
func (c *Core) arm(evs []*Event, o *AddOptions) ([]*Event, error) {
	kept, err := c.placeEvents(evs, o)
	if err == nil {
		kept, err = c.install(kept, o)
	}
	if err != nil {
		return evs, err
	}
	return kept, nil
}

// placeEvents puts new events into their functions, and finds how each gets control.
func (c *Core) placeEvents(evs []*Event, o *AddOptions) ([]*Event, error) {
	for _, e := range evs {
		if e.gone || e.watches() {
			continue
		}
		e.fn.take(e)
		if !e.internalProbe {
			e.fn.constraints = c.constraintsOf(e.fn, o)
		}
	}
	return c.keep(evs, o, c.serve)
}

// keep gives the events that can be served; gone ones are not tried. The first other is an error, or they are left out if
// the options say so. That the target has gone is an error in any case, and no event is tried after it.
func (c *Core) keep(evs []*Event, o *AddOptions, try func(*Event) error) ([]*Event, error) {
	kept := make([]*Event, 0, len(evs))
	for _, e := range evs {
		var err error
		if !e.gone {
			err = try(e)
		}
		switch {
		case err == nil:
			kept = append(kept, e)
		case errors.Is(err, target.ErrGone), !o.skips(e):
			return evs, err
		case e.h != nil: // put forgets it
			e.h.left = err
			e.fn.drop(e)
		default:
			c.skip(e.Given, e.Place.Func.Pretty(), err, o)
			c.numbers.Free(c.erase([]*Event{e})...) // no code was made for it
		}
	}
	return kept, nil
}

// install brings the functions of events to what these want.
func (c *Core) install(evs []*Event, o *AddOptions) ([]*Event, error) {
	fns := make([]*function, 0, len(evs))
	for _, e := range evs {
		if !e.gone && !e.watches() {
			fns = append(fns, e.fn)
		}
	}
	if len(fns) == 0 {
		return evs, nil
	}
	slices.SortFunc(fns, byStart)
	return c.generable(evs, slices.Compact(fns), o)
}

// constraintsOf is what is asked of the regions of a function.
func (c *Core) constraintsOf(f *function, o *AddOptions) constraints {
	return constraints{force: regionTactic(o.Tactic), named: c.t.TrapsAt(f.Start, true), unasked: c.t.TrapsAt(f.Start, false)}
}

// generable brings functions to what their events want. Where no generated code can serve a
// new event the kernel holds its probe; else it is an error, or the function's new events
// are left out if the options say so.
func (c *Core) generable(evs []*Event, fns []*function, o *AddOptions) ([]*Event, error) {
	bad := map[*function]error{}
	mend := func(f *function, err error) error {
		if bad[f] != nil || errors.Is(err, target.ErrGone) {
			return err
		}
		fresh := slices.DeleteFunc(slices.Clone(f.events), func(e *Event) bool { return !slices.Contains(evs, e) })
		e, err := c.fallBackToUprobeAt(fresh, err)
		asked := func(e *Event) bool { return !o.skips(e) }
		switch {
		case err == nil:
			return nil
		case !slices.ContainsFunc(fresh, asked):
		case e != nil:
			return e.refused(err)
		default:
			return err
		}
		bad[f] = err
		for _, e := range fresh {
			f.drop(e)
		}
		return nil
	}
	if err := c.updateOr(fns, mend, stopping{}); err != nil {
		return nil, err
	}
	if len(bad) == 0 {
		return evs, nil
	}
	return slices.DeleteFunc(evs, func(e *Event) bool {
		err := bad[e.fn]
		if e.gone || err == nil {
			return false
		}
		if e.h != nil {
			e.h.left = e.refused(err)
			return true
		}
		c.skip(e.Given, e.Place.Func.Pretty(), e.refused(err), o)
		e.ended = true
		e.release()
		return true
	}), nil
}
