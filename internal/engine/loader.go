package engine

import (
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

// addHooks adds probes of our own at which a thread waits, a bounded time, for Sync. One is on the
// loader, if an event may depend on an object that comes or goes: Sync arms what belongs into an
// object that was loaded. A program whose loader can not be probed is looked at from time to time only.
// The other is where a program passes that had no signal handlers yet (target.Beginner).
func (c *Core) addHooks(evs []*Event, o *AddOptions) []*Event {
	if !o.Late {
		return evs
	}
	if c.loaderProbe == nil && slices.ContainsFunc(evs, func(e *Event) bool { return e.gone || e.byStub || e.elsewhere() || recordsStack(e) }) {
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
	e := &Event{Def: &event.Def{Kind: event.Probe}, Place: r, knobs: &c.knobs, fn: f, tail: -1, internalProbe: true, points: []uint64{f.Code.EntryPoint()}}
	e.Prog = &fetch.Program{}
	e.work = arch.ProbeOp{Prog: e.Prog, Wait: words, Role: arch.RoleWait}
	if f.takesJump(e.points[0]) != nil {
		return nil
	}
	if len(f.events) == 0 {
		f.constraints = constraints{force: arch.TacticJump}
	}
	return e
}
