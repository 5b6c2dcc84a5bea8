package kprobes

import (
	"errors"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/target"
)

// prepare prepares the target, and puts the engine's own probes on the functions by which its threads may come to
// share a block. Where one of these can not be probed all code takes the way that does not rely on blocks.
func (c *Core) prepare() error {
	if err := c.t.Prepare(); err != nil {
		return err
	}
	t, ok := c.t.(target.Sharer)
	if !ok || c.watched {
		return nil
	}
	var err error
	if len(c.sharing) == 0 { // else they stand, and only the check failed
		err = c.watchSharing(t.Sharers())
	}
	if errors.Is(err, target.ErrGone) {
		return err
	}
	if err != nil {
		err = t.SetShared()
	} else if len(c.sharing) > 0 {
		err = t.CheckOwn()
	}
	c.watched = err == nil
	return err
}

// watchSharing arms the probes.
func (c *Core) watchSharing(points []target.Sharing) error {
	var fresh []*Event
	for _, p := range points {
		f, err := c.function(p.Place)
		if err != nil {
			return err
		}
		e := &Event{Def: &event.Def{Kind: event.Probe}, Place: p.Place, core: c, fn: f, tail: -1, hook: true, points: []uint64{f.a.EntryPoint()}}
		e.work = arch.Work{Role: arch.RoleShare, Share: p.Share, Library: p.Library, Count: true}
		f.wish = wish{force: arch.TacticJump}
		fresh = append(fresh, e)
	}
	if len(fresh) == 0 {
		return nil
	}
	err := c.armOwn(fresh)
	if err == nil {
		c.sharing = fresh
	}
	return err
}

// armOwn arms probes of the engine's own: all of them, or none.
func (c *Core) armOwn(evs []*Event) error {
	err := c.number(evs)
	if err == nil {
		_, err = c.arm(evs, &AddOptions{})
	}
	for _, e := range evs {
		if err == nil && e.form.tactic == "" {
			err = e.form.why
		}
	}
	if err != nil {
		return errors.Join(err, c.remove(evs, nil))
	}
	return nil
}
