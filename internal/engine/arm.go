package engine

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes/event"
)

// arm puts new events into their functions and the functions' sites into the target.
// Events that no tactic can serve are an error, or skipped if the options say so.
func (c *Core) arm(evs []*Event, o *AddOptions) ([]*Event, error) {
	c.stubbed.asked = false
	if c.meetsOwn(evs) { // what the caller wants there must not come before the other own probes
		if err := errors.Join(c.armOwnNow(), c.located(evs)); err != nil {
			return evs, err
		}
	}
	fns := make([]*function, 0, len(evs))
	for _, e := range evs {
		if e.gone {
			continue
		}
		if err := c.pool(e); err != nil {
			return evs, e.refused(err)
		}
		e.fn.take(e)
		if !e.internalProbe {
			e.fn.wish = c.wishOf(e.fn, o)
		}
		fns = append(fns, e.fn)
	}
	kept := make([]*Event, 0, len(evs))
	for _, e := range evs {
		var err error
		if !e.gone {
			err = c.serve(e)
			if err == nil && e.byStub {
				err = c.stub(e)
			}
		}
		switch {
		case err == nil:
			kept = append(kept, e)
		case !o.skips(e):
			return evs, err
		default:
			if e.h != nil { // put forgets it
				e.h.left = err
				e.fn.drop(e)
				continue
			}
			c.skip(e.pattern, e.Place.Func.Pretty(), err, o)
			c.freeIDs = append(c.freeIDs, c.erase([]*Event{e})...) // no code was made for it
		}
	}
	fns = slices.DeleteFunc(fns, func(f *function) bool { return len(f.events) == 0 })
	if len(fns) == 0 {
		return kept, nil
	}
	slices.SortFunc(fns, byStart)
	left, err := c.generable(kept, slices.Compact(fns), o)
	if err != nil {
		return evs, err
	}
	return left, nil
}

// wishOf is what is asked of the regions of a function.
func (c *Core) wishOf(f *function, o *AddOptions) constraints {
	return constraints{force: regionTactic(o.Tactic), named: c.t.TrapsAt(f.start, true), unasked: c.t.TrapsAt(f.start, false)}
}

// noTraps says why no breakpoint may stand in the function now; nil: it may. The tactic asks for
// them by name, and the knob asks for all that may stand.
func (f *function) noTraps() error {
	if f.wish.force != "" || f.core != nil && f.core.optimizationOff {
		return f.wish.named
	}
	return f.wish.unasked
}

// generable brings functions to what their events want. Where no code of ours can serve a
// new event the kernel holds its probe; else it is an error, or the function's new events
// are left out if the options say so.
func (c *Core) generable(evs []*Event, fns []*function, o *AddOptions) ([]*Event, error) {
	bad := map[*function]error{}
	mend := func(f *function, err error) error {
		if bad[f] != nil {
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
		c.skip(e.pattern, e.Place.Func.Pretty(), e.refused(err), o)
		e.ended = true
		e.release()
		return true
	}), nil
}

// refused wraps the reason why an event can not be armed.
func (e *Event) refused(err error) error {
	if e.h != nil {
		return e.h.refused(err)
	}
	return e.Def.Refuse(event.FailRegProbe, e.Def.Place.Pos, "", errors.Join(err, ErrRegister))
}

// pool gives a return probe its instances.
func (c *Core) pool(e *Event) error {
	if e.Def.Kind != event.Return || e.work.Pool != nil {
		return nil
	}
	p, err := c.t.Pool(len(e.Prog.EntryBases()), e.Def.MaxActive)
	e.work.Pool = p
	return err
}
