package engine

import (
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/target"
)

// note has the target's memory tell of the events that wait to be armed, for a thread or for their
// object.
func (c *Core) note() {
	t := c.can.PendingLister
	if t == nil || c.queue.Len() == 0 && !c.noted && !c.unmapped {
		return
	}
	waiting := c.unmappedSites()
	for _, f := range c.queue.Functions(byStart) {
		for _, e := range f.events {
			if e.idle() || e.internalProbe || e.form.tactic != "" {
				continue
			}
			waiting = append(waiting, e.notice(target.ReasonQueued))
		}
	}
	if t.Note(waiting) == nil { // else a listing misses them, and nothing else
		c.noted = len(waiting) > 0
	}
}

// notice is an event as a listing shows it that is not armed.
func (e *Event) notice(why target.Reason) *target.Site {
	p := target.Point{Addr: e.points[0], Probes: 1}
	if e.Def.Kind == event.Return {
		p.Probes, p.Returns = 0, 1
	}
	return &target.Site{Addr: p.Addr, Points: []target.Point{p}, Reason: why}
}

// unmappedSites are the events that stood in objects which are not mapped any more.
func (c *Core) unmappedSites() (out []*target.Site) {
	if !c.unmapped || c.closing {
		return nil
	}
	c.unmapped = false
	for _, e := range c.events {
		if e == nil || !e.gone || e.ended || e.internalProbe || len(e.points) == 0 {
			continue
		}
		c.unmapped = true
		if e.over != nil { // it is disabled, and stays so when its object comes again
			continue
		}
		s := e.notice(target.ReasonGone)
		s.Name = e.Def.Place.String()
		out = append(out, s)
	}
	return out
}

// stopOptimizing ends the queue, when everything is to be taken out.
func (c *Core) stopOptimizing() {
	c.publish()
	last := *c.published.Load()
	last.until = time.Now()
	c.published.Store(&last)
	c.closing = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.queue.Clear()
	c.note()
}
