package engine

import (
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// addHooks adds probes of our own at which a thread waits, a bounded time, for Sync. One is on the
// loader, if an event may depend on an object that comes or goes: Sync arms what belongs into an
// object that was loaded. A program whose loader can not be probed is looked at from time to time only.
// The other is where a program passes that had no signal handlers yet (target.Beginner).
func (c *Core) addHooks(evs []*Event, o *AddOptions) []*Event {
	if !o.Late {
		return evs
	}
	if c.loaderProbe == nil && slices.ContainsFunc(evs, func(e *Event) bool { return e.gone || e.byStub || !e.Place.Module.Main }) {
		if c.loaderProbe = c.loaderHook(); c.loaderProbe != nil {
			evs = append(evs, c.loaderProbe)
		}
	}
	if t := c.can.Beginner; t != nil && c.atMain == nil {
		if c.atMain = c.waitHook(t.Begins()); c.atMain != nil {
			evs = append(evs, c.atMain)
		}
	}
	return evs
}

// watchLoader arms that probe by itself: before an addition that failed, since objects came or went
// meanwhile, is made again.
func (c *Core) watchLoader(o *AddOptions) {
	if c.loaderProbe != nil || !o.Late {
		return
	}
	if e := c.loaderHook(); e != nil && c.armOwn([]*Event{e}) == nil {
		c.loaderProbe = e
	}
}

// loaderHook makes the probe; nil: the loader can not be probed.
func (c *Core) loaderHook() *Event { return c.waitHook(c.t.Loader()) }

// waitHook makes a probe of RoleWait at the entry of a function; nil: there can be none, or ok is false.
func (c *Core) waitHook(r symbol.Resolved, words uint64, ok bool) *Event {
	if !ok {
		return nil
	}
	f, err := c.function(r)
	if err != nil {
		return nil
	}
	e := &Event{Def: &event.Def{Kind: event.Probe}, Place: r, core: c, fn: f, tail: -1, internalProbe: true, points: []uint64{f.a.EntryPoint()}}
	e.Prog = &fetch.Program{}
	e.work = arch.ProbeOp{Prog: e.Prog, Wait: words, Role: arch.RoleWait}
	if f.takesJump(e.points[0]) != nil {
		return nil
	}
	if len(f.events) == 0 {
		f.wish = constraints{force: arch.TacticJump}
	}
	return e
}

// Sync looks at what the target has mapped now. Events in objects that were unmapped
// become gone; gone ones whose object is there (again, or for the first time) are armed.
// An event that can not be armed in the object that came stays gone, and why is in the
// error. What happened between an object's arrival and Sync is not seen. In a Go program that process.Start has made,
// Sync installs the engine's signal handlers once the runtime has its own; with AddOptions.Late the program waits for that
// a quarter of a second, before its init functions. Where return addresses
// are replaced the Core does the same by itself, ten times a second, and the next Sync has the error.
func (c *Core) Sync() error {
	c.mu.Lock()
	defer c.unlock()
	err := errors.Join(c.stubbed.syncErr, c.sync())
	c.stubbed.syncErr = nil
	return err
}

// syncStubs is Sync where return addresses are replaced and nobody may call it. Precondition: mu is
// held.
func (c *Core) syncStubs() {
	if !slices.ContainsFunc(c.events, func(e *Event) bool { return byStub(e) && !e.gone && e.withdrawn == nil }) && !c.stubbed.left {
		return
	}
	c.tidying = true
	defer func() { c.tidying = false }()
	if err := c.sync(); err != nil && !errors.Is(err, target.ErrGone) {
		c.stubbed.syncErr = err
	}
}

// sync is Sync. Precondition: mu is held.
func (c *Core) sync() error {
	loaded := c.records.loaded.Swap(false) // before the look: a thread that loads later waits for the next one
	changed, err := c.t.Refresh()
	changed = changed || c.stale
	c.stale = false
	c.space.Store(c.t.Space())
	switch {
	case err != nil:
	case changed:
		c.stubbed.asked = false
		err = errors.Join(c.dropGone(), c.walkLate(), c.withdraw(), c.armLate())
		c.note()
	case time.Since(c.stubbed.looked) >= keepEvery:
		err = c.withdraw()
	}
	err = errors.Join(err, c.yield(), c.lookForWritten())
	if t := c.can.Beginner; t != nil && !c.yielded && !t.Begin() && loaded {
		loaded = false // its thread waits on: Begin is tried again
		c.records.loaded.Store(true)
	}
	if t := c.can.Filterer; t != nil && c.filters && !c.yielded {
		err = errors.Join(err, t.CheckFilters(false))
	}
	if loaded {
		err = errors.Join(err, c.t.Answer())
	}
	return err
}

// dropGone forgets the functions whose code is not mapped any more.
func (c *Core) dropGone() error {
	var errs []error
	for start, f := range c.fns {
		if m := c.t.Space().ModuleAt(start); m != nil && m.Image == f.image {
			continue
		}
		text := slices.DeleteFunc(slices.Clone(f.sites), ofStubs)
		c.stubbed.gone = append(c.stubbed.gone, slices.DeleteFunc(f.sites, func(s *target.Site) bool { return !ofStubs(s) })...)
		errs = append(errs, c.t.Forget(text))
		f.lapse()
		for _, e := range f.events {
			e.release()
			e.gone, e.fn = true, nil
			c.unmapped = true
			e.ended = e.ended || c.stubbed.walkers[start] == e
		}
		delete(c.stubbed.walkers, start)
		f.events, f.sites = nil, nil
		delete(c.fns, start)
		c.queue.Remove(f)
	}
	return errors.Join(append(errs, c.dropStubs())...)
}

// dropStubs has the stubs of functions that are gone lead to their own code again: their memory is not the object's, and a
// call that went on elsewhere by a jump may return through one yet.
func (c *Core) dropStubs() error {
	if len(c.stubbed.gone) == 0 {
		return nil
	}
	err := c.t.Commit(&target.Change{Remove: c.stubbed.gone})
	if err == nil {
		c.stubbed.gone = nil
	}
	return err
}

// ofStubs says whether a site is that of a trampoline (stubSite).
func ofStubs(s *target.Site) bool { return s.Region.Hi != 0 }

// armLate arms the events whose object has come.
func (c *Core) armLate() error {
	var ready []*Event
	var errs []error
	for _, e := range c.events {
		if e == nil || !e.gone || e.ended || e.h != nil {
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
			err = c.records.show(e)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e.gone = false
		ready = append(ready, e)
	}
	if len(ready) > 0 {
		if _, err := c.arm(ready, &AddOptions{Tactic: ready[0].force}); err != nil {
			c.keepGone(ready)
			if c.stale = c.moved(err); !c.stale { // else the next Sync arms them, where they are then
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// keepGone takes back what was done for events that could not be armed.
func (c *Core) keepGone(evs []*Event) {
	for _, e := range evs {
		e.release()
		if e.fn != nil {
			e.fn.drop(e)
		}
		e.gone, e.fn = true, nil
	}
}
