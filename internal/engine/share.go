package engine

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
)

// prepare prepares the target, and makes the engine's own probes on the functions by which its threads may come to
// share a block. Where one of these can not be probed all code takes the way that does not rely on blocks.
func (c *Core) prepare() error {
	if err := c.t.Prepare(); err != nil {
		return err
	}
	t := c.can.Sharer
	if t == nil || c.watched {
		return nil
	}
	if len(c.sharing) > 0 { // they stand, and only the check failed
		err := t.CheckOwn()
		c.watched = err == nil
		return err
	}
	fresh, err := c.sharers(t.Sharers())
	if err == nil && len(fresh) > 0 {
		c.own.sharing = fresh
		return nil
	}
	return c.unshared(t, err)
}

// unshared notes that there is no need of the probes on what makes threads share blocks; not if err says why they can not be.
func (c *Core) unshared(t target.Sharer, err error) error {
	if errors.Is(err, target.ErrGone) {
		return err
	}
	if err != nil {
		err = t.SetShared()
	}
	c.watched = err == nil
	return err
}

// sharers makes the probes.
func (c *Core) sharers(points []target.Sharing) ([]*Event, error) {
	var fresh []*Event
	for _, p := range points {
		f, err := c.function(p.Place)
		if err != nil {
			return nil, err
		}
		e := &Event{Def: &event.Def{Kind: event.Probe}, Place: p.Place, knobs: &c.knobs, fn: f, tail: -1, internalProbe: true, points: []uint64{f.Code.EntryPoint()}}
		e.work = arch.ProbeOp{Role: arch.RoleShare, Share: p.Share, Library: p.Library, Count: true}
		f.constraints = constraints{force: arch.TacticJump}
		fresh = append(fresh, e)
	}
	return fresh, c.numberOwn(fresh)
}

// numberOwn gives probes of the engine's own their numbers, or forgets them.
func (c *Core) numberOwn(evs []*Event) error {
	err := c.number(evs)
	if err != nil {
		err = errors.Join(err, c.remove(evs, stopping{}))
	}
	return err
}

// armOwn arms probes of the engine's own, in a stop of their own: all of them, or none.
func (c *Core) armOwn(evs []*Event) error {
	if err := c.numberOwn(evs); err != nil {
		return err
	}
	return c.armNumbered(evs)
}

// armNumbered is armOwn for events that have their numbers.
func (c *Core) armNumbered(evs []*Event) error {
	_, err := c.arm(evs, &AddOptions{})
	for _, e := range evs {
		if err == nil && e.form.tactic == "" {
			err = e.form.why
		}
	}
	if err != nil {
		return errors.Join(err, c.remove(evs, stopping{}))
	}
	return nil
}

// first gives the changes that put in what is in c.own. Where there is one that can not be made, each kind of
// probes is armed by itself, and none is left.
func (c *Core) first() ([]*functionChange, error) {
	own := &c.own
	if own.changes != nil || len(own.sharing)+len(own.filters) == 0 {
		return own.changes, nil
	}
	var fns []*function
	for _, e := range own.events() {
		e.fn.take(e)
		fns = append(fns, e.fn)
	}
	slices.SortFunc(fns, byStart)
	own.changes = c.begin(slices.Compact(fns))
	failed := c.make(own.changes)
	for _, ch := range own.changes {
		if ch.Whole { // code of other events' that must end
			failed = append(failed, ch)
		}
		ch.Whole = true
	}
	if len(failed) > 0 {
		c.takeBackOwn()
		return nil, c.armOwnNow()
	}
	return own.changes, nil
}

// takeBackOwn takes the code of c.own back, which was not put in.
func (c *Core) takeBackOwn() {
	if c.own.changes == nil {
		return
	}
	c.drop(c.own.changes)
	c.own.changes = nil
	for _, e := range c.own.events() {
		e.fn.drop(e)
	}
}

// checkFirst is called in the stop that has armed c.own.
func (c *Core) checkFirst() (err error) {
	if len(c.own.sharing) > 0 {
		err = c.can.Sharer.CheckOwn()
		c.watched = err == nil
	}
	if len(c.own.filters) > 0 {
		_ = c.can.Filterer.CheckFilters(true) // why not is told by Filtered
	}
	return err
}

// firstMade notes that what was in c.own stands.
func (c *Core) firstMade() {
	c.sharing = append(c.sharing, c.own.events()...)
	c.filters = c.filters || len(c.own.filters) > 0
	c.own = ownProbes{}
}

// armFirst arms what is in c.own in stops of its own, where it could not be made with what comes behind it.
func (c *Core) armFirst() error {
	c.takeBackOwn()
	return c.armOwnNow()
}

// armOwnNow arms what is in c.own in stops of its own. After an error no code may be put in that relies on it: the next
// addition comes here again.
func (c *Core) armOwnNow() (err error) {
	own := c.own
	c.own = ownProbes{}
	if len(own.sharing) > 0 {
		t := c.can.Sharer
		if no := c.armNumbered(own.sharing); no != nil {
			err = c.unshared(t, no)
		} else {
			c.sharing = append(c.sharing, own.sharing...)
			err = t.CheckOwn()
			c.watched = err == nil
		}
	}
	if err != nil {
		c.forget(own.filters)
		return err
	}
	if len(own.filters) > 0 {
		err := c.located(own.filters)
		if err == nil {
			err = c.armNumbered(own.filters)
		} else {
			c.forget(own.filters)
		}
		if c.filters = err == nil; c.filters {
			c.sharing = append(c.sharing, own.filters...)
		}
		_ = c.can.Filterer.CheckFilters(true) // why not is told by Filtered
	}
	return nil
}

// located analyses the functions of events anew that were forgotten with other events of theirs.
func (c *Core) located(evs []*Event) error {
	for _, e := range evs {
		if e.gone || e.watches() {
			continue
		}
		f, err := c.function(e.Place)
		if err != nil {
			return err
		}
		if f != e.fn && len(f.events) == 0 {
			f.constraints = constraints{force: arch.TacticJump}
		}
		e.fn = f
	}
	return nil
}

// finishSharing ends an addition: what is left in c.own, since no code was put in that relies on it, is armed by itself, or,
// after an error, forgotten.
func (c *Core) finishSharing(err error) {
	if len(c.own.sharing)+len(c.own.filters) == 0 {
		return
	}
	c.takeBackOwn()
	if err == nil {
		_ = c.armOwnNow() // the next addition sees to it
		return
	}
	evs := c.own.events()
	c.own = ownProbes{}
	c.forget(evs)
}

// meetsOwn says whether an event is in a function that a probe in c.own is to stand in.
func (c *Core) meetsOwn(evs []*Event) bool {
	for _, own := range c.own.events() {
		if slices.ContainsFunc(evs, func(e *Event) bool { return e != own && e.fn == own.fn }) {
			return true
		}
	}
	return false
}
