package engine

import (
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
)

// watchFilters makes probes of the engine's own on the functions by which the target's threads come to be
// forbidden system calls (target.Filterer), for the first event whose code makes some. A function
// that takes no jump now stays without: what comes through it is not seen.
func (c *Core) watchFilters(evs []*Event) {
	t := c.can.Filterer
	if t == nil || c.filters || !slices.ContainsFunc(evs, c.callsSystem) {
		return
	}
	var fresh []*Event
	for _, fc := range t.FilterCalls() {
		f, err := c.function(fc.Place)
		if err != nil {
			continue
		}
		e := &Event{Def: &event.Def{Kind: event.Probe}, Place: fc.Place, knobs: &c.knobs, fn: f, tail: -1, internalProbe: true, points: []uint64{f.Code.EntryPoint()}}
		e.work = arch.ProbeOp{Role: arch.RoleQuiet, Installs: fc.Ways, Count: true}
		if f.takesJump(e.points[0]) != nil {
			continue
		}
		if len(f.events) == 0 {
			f.constraints = constraints{force: arch.TacticJump}
		}
		fresh = append(fresh, e)
	}
	// If they can not be armed the caller's events will meet what is wrong, and the next ones come here again.
	if len(fresh) > 0 && c.numberOwn(fresh) == nil {
		c.own.filters = fresh
		return
	}
	c.filters = len(fresh) == 0
	_ = t.CheckFilters(true) // why not is told by Filtered
}

// callsSystem says whether the code of an event makes system calls.
func (c *Core) callsSystem(e *Event) bool {
	w := c.t.CodegenEnv()
	switch {
	case e.watches():
		return false
	case e.h != nil, e.gone:
		return true
	case e.Prog == nil:
		return false
	}
	return w.Go == nil && !w.NoTID && !e.work.CountPassing || !w.PlainLoads && e.Prog.Loads()
}
