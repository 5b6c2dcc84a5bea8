package kprobes

import (
	"errors"

	"kprobes.dev/kprobes/symbol"
)

// Sync looks at what the target has mapped now. Events in objects that were unmapped
// become gone; gone ones whose object is there (again, or for the first time) are armed.
// An event that can not be armed in the object that came stays gone, and why is in the
// error. What happened between an object's arrival and Sync is not seen.
func (c *Core) Sync() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed, err := c.t.Refresh()
	if err != nil || !changed {
		return err
	}
	return errors.Join(c.dropGone(), c.armLate())
}

// dropGone forgets the functions whose code is not mapped any more.
func (c *Core) dropGone() error {
	var errs []error
	for start, f := range c.fns {
		if m := c.t.Space().ModuleAt(start); m != nil && m.Image == f.image {
			continue
		}
		errs = append(errs, c.t.Forget(f.sites))
		for _, e := range f.events {
			e.gone, e.fn = true, nil
		}
		f.events, f.sites = nil, nil
		delete(c.fns, start)
	}
	return errors.Join(errs...)
}

// armLate arms the events whose object has come.
func (c *Core) armLate() error {
	var ready []*Event
	var errs []error
	for _, e := range c.events {
		if e == nil || !e.gone || e.ended {
			continue
		}
		r, err := c.t.Space().Resolve(placeOf(e.Def))
		if errors.Is(err, symbol.ErrNoModule) {
			continue
		}
		if err == nil {
			err = c.locate(e, r)
		}
		if err == nil {
			c.numberTail(e)
			err = c.allow(e)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e.gone = false
		ready = append(ready, e)
	}
	if len(ready) > 0 {
		_, err := c.arm(ready, &AddOptions{Tactic: ready[0].force})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
