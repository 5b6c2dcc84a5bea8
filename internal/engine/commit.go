package engine

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes/internal/engine/change"
	"kprobes.dev/kprobes/internal/target"
)

// remake makes the code of a change anew.
func (c *Core) remake(ch *functionChange) error {
	c.make([]*functionChange{ch})
	return ch.err
}

// commit makes changes, but for those that a thread blocks and that can come later. once: what
// must be made is not tried again.
func (c *Core) commit(cs []*functionChange, also stopping, once bool) error {
	all, work := c.attempt(cs, also.then, once)
	var last []*functionChange
	if also.end != nil {
		last, work = c.begin(also.last), true
		for _, ch := range last {
			ch.Whole = true
		}
		all.Next, _ = c.attempt(last, func() error { also.end(); return nil }, once)
	}
	if !work {
		c.made(cs)
		return nil
	}
	err := c.commitAll(all)
	if err == nil || all.Made {
		c.made(cs)
	}
	if err == nil || all.Next != nil && all.Next.Made {
		c.made(last)
	}
	return err
}

// commitAll makes a change, and before it what is in c.own. If a thread is in the way of that, it is armed by itself first.
func (c *Core) commitAll(all *target.Change) error {
	first, err := c.ownFirst()
	if err != nil {
		return err
	}
	if len(first) == 0 {
		return c.t.Commit(all)
	}
	head, _ := c.attempt(first, c.checkOwn, true)
	head.Next = all
	err = c.t.Commit(head)
	if head.Made {
		c.ownMade()
		return err
	}
	if errors.Is(err, target.ErrGone) {
		return err
	}
	c.takeBackOwn()
	if err := c.armOwnNow(); err != nil {
		return err
	}
	return c.t.Commit(all)
}

// made notes that changes were made, but for those that were left out.
func (c *Core) made(cs []*functionChange) {
	for _, ch := range cs {
		if ch.Settle() {
			c.done(ch)
		}
	}
}

// attempt is what is left of changes as one for the target, and whether there is something to do: see change.All. Handlers
// may run before it returns, so the events tell how they get control then.
func (c *Core) attempt(cs []*functionChange, then func() error, once bool) (*target.Change, bool) {
	for _, ch := range cs {
		if ch.State() == change.Committed {
			continue
		}
		for _, n := range ch.now {
			n.e.become(n.armedAs)
		}
	}
	return change.All(bases(cs), then, once)
}

// done notes that a change was made.
func (c *Core) done(ch *functionChange) {
	f := ch.f
	c.leaveStubs(f)
	for _, s := range f.serving {
		if len(ch.Add) == 0 || s.e.idle() || !slices.Contains(f.events, s.e) {
			s.e.lapse()
		}
	}
	clear(f.one.serving[:])
	f.sites, f.serving, f.planned = ch.Add, f.one.serving[:0], nil
	if len(f.sites) == 0 {
		f.blockedErr = nil
	} else {
		c.watchWritten()
	}
	for _, e := range f.events {
		s, in := served{e: e}, len(f.sites) > 0 && !e.idle()
		if e.h != nil {
			n := e.h.h.Calls()
			s.n = &n
		}
		if in {
			f.serving = append(f.serving, s)
		}
	}
	if f.blockedErr == nil {
		c.queue.Remove(f)
	}
	if len(f.events) == 0 {
		if c.fns[f.start] == f { // it may have been taken out before, and another be there
			delete(c.fns, f.start)
		}
		f.a, f.body, f.parts = nil, nil, nil // events that were removed are kept for their counts
	}
}

// drop gives back what changes were to put in that were not made, and leaves everything as it was before them.
func (c *Core) drop(cs []*functionChange) {
	for _, ch := range cs {
		if ch.State() == change.Committed {
			continue
		}
		c.release(ch.Add)
		ch.Add, ch.f.blockedErr = nil, ch.blockedErr
		for _, w := range ch.was {
			if w.e.held == nil {
				w.e.become(w.armedAs)
			}
		}
	}
}
