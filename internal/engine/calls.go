package engine

import (
	"fmt"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine/instances"
)

// pool gives a return probe its instances.
func (c *Core) pool(e *Event) error {
	if e.Def.Kind != event.Return || e.calls != nil { // that of an object that has come again has them
		return nil
	}
	if e.Prog.Durations() {
		tick, err := c.records.Tick()
		if err != nil {
			return fmt.Errorf("$duration: the length of a tick of the target's clock is not known: %w", err)
		}
		e.work.Tick = tick
	}
	p, err := c.t.Pool(len(e.Prog.EntryBases()), e.Def.MaxActive)
	if err != nil {
		return err
	}
	e.work.Pool = p
	e.calls = &instances.Probe{ID: e.ID, Pool: p, NoEntryHandler: e.h == nil || !e.h.h.HasEntry()}
	if e.h == nil {
		return nil
	}
	e.calls.Changed = func() { c.callsChanged(e) }
	if e.h.disabled {
		e.calls.MarkClear()
	}
	return nil
}

// returnProbes lists the return probes that are registered, with their instances. The list holds until the next call: it is asked for
// ten times a second.
func (c *Core) returnProbes() []*instances.Probe {
	c.listed = c.listed[:0]
	for _, e := range c.events {
		if e != nil && !e.ended && e.calls != nil {
			c.listed = append(c.listed, e.calls)
		}
	}
	return c.listed
}

// callsOf gives the instances of those of the events that are return probes.
func callsOf(evs []*Event) (ps []*instances.Probe) {
	for _, e := range evs {
		if e != nil && e.calls != nil {
			ps = append(ps, e.calls)
		}
	}
	return ps
}

// endCalls has the reaper reclaim the instances of events whose code is out.
func (c *Core) endCalls(evs ...*Event) {
	for _, e := range evs {
		c.reclaimer.End(e.calls)
	}
	if c.reclaimer.Waiting() {
		c.startReaper()
	}
}

// callsChanged tells the probe of the event, if it was unregistered, what has become of the calls that had an instance then.
func (c *Core) callsChanged(e *Event) {
	last := e.h.last.Load()
	if !e.h.ended.Load() || last == nil {
		return
	}
	s := *last
	s.Active, s.Unwound = e.calls.Counts()
	if r := c.t.Ring(); r != nil {
		s.Unwound += r.Sum(e.ID).Unwound
	}
	if !e.calls.Clear() {
		s.Active += c.reclaimer.Taken(e.calls)
	}
	e.h.last.Store(&s)
}

// retire forgets the event of a probe that is not armed any more, and gives its number, which may be used again. The
// reaper reclaims its instances.
func (c *Core) retire(e *Event) (ids []int) {
	if e.ID >= len(c.events) || c.events[e.ID] != e {
		return nil // it got no number
	}
	c.endCalls(e)
	c.events[e.ID] = nil
	if !e.calls.Clear() {
		c.numbers.Hold(e.ID)
		return nil
	}
	return []int{e.ID}
}
