package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine/change"
	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/target"
)

// What a thread blocks is not refused: it is put in later. A breakpoint takes one byte, in
// which no thread can stand in the middle, so a function whose jumps are blocked gets
// breakpoints at once, if these may stand there, with the same detours; a hit takes a trap and
// no step. Else the function's new probes are not armed yet, and its old ones stay as they
// are. Either way it is queued, and the optimiser tries again until it has its final form, or
// does not want it any more.

// optimizing is the part of a Core that gives functions their final form later.
type optimizing struct {
	queue      change.Queue[*function]
	timer      *time.Timer // of the next attempt; nil: there was none
	background bool        // an attempt is in progress
	noted      bool        // the target's memory tells of some
	unmapped   bool        // events stood in objects that are not mapped any more
	postponed  uint64      // events that had to wait, since Open
	closing    bool        // the Core is being closed, or is closed
	published  atomic.Pointer[snapshot]
}

// tried counts those of changes that were postponed, and has the optimiser look after what is
// left of them.
func (c *Core) tried(cs []*functionChange) {
	for _, ch := range cs {
		if q := c.queue.Get(ch.f); q == nil {
			continue
		} else if err := ch.Why(); err != nil {
			q.Why = err
		}
		for _, e := range ch.f.events {
			if !e.idle() && !c.background {
				c.postponed++
			}
		}
	}
	if c.queue.Len() == 0 || c.background {
		return
	}
	pause := c.queue.Begin()
	if c.timer == nil {
		c.timer = time.AfterFunc(pause, c.keepOptimizing)
		return
	}
	c.timer.Reset(pause)
}

// keepOptimizing is the optimiser's work. It goes on until nothing is queued.
func (c *Core) keepOptimizing() {
	c.mu.Lock()
	defer c.unlock()
	if c.queue.Len() == 0 {
		return
	}
	c.background = true
	err := c.optimize()
	c.background = false
	c.note()
	if errors.Is(err, target.ErrGone) {
		c.queue.Clear()
		return
	}
	if c.queue.Len() > 0 {
		c.timer.Reset(c.queue.Next())
	}
}

// optimize tries to give the functions that are queued their final form. One that has
// breakpoints meanwhile keeps them if that fails; one that has not gets them now, if it can.
func (c *Core) optimize() error {
	fns := c.queue.Functions(byStart)
	err := c.optimizeAll(fns)
	if err == nil || errors.Is(err, target.ErrGone) || len(fns) < 2 {
		return err
	}
	for _, f := range fns { // one that can not be changed does not hold up the others
		if c.queue.Get(f) != nil {
			err = c.optimizeAll([]*function{f})
		}
	}
	return err
}

// optimizeAll is optimize for some of the functions, in one stop.
func (c *Core) optimizeAll(fns []*function) error {
	cs := make([]*functionChange, 0, len(fns))
	for _, f := range fns {
		ch := new(functionChange)
		ch.begin(f)
		ch.Whole, f.blockedErr = false, nil
		if err := c.remake(ch); err != nil {
			c.queue.Put(f, err)
			c.drop([]*functionChange{ch})
			continue
		}
		cs = append(cs, ch)
	}
	if err := c.commit(cs, stopping{}, false); err != nil {
		c.drop(cs)
		for _, ch := range cs {
			c.queue.Put(ch.f, err)
		}
		return err
	}
	var unarmed []*functionChange
	for _, ch := range blocked(cs) {
		c.queue.Put(ch.f, ch.Why())
		if ch.blockedErr == nil {
			unarmed = append(unarmed, ch)
			continue
		}
		ch.blockedErr = queued(ch.Why())
		c.leave(ch)
		ch.f.retell()
	}
	c.postpone(unarmed)
	return nil
}

// retell has the function's events tell what they wait for now.
func (f *function) retell() {
	for _, e := range f.events {
		var p *plan.QueuedError
		if errors.As(e.form.why, &p) {
			e.form.why = f.blockedErr
		}
	}
}

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
		s := e.notice(target.ReasonGone)
		s.Name = e.Def.Place.String()
		out = append(out, s)
		c.unmapped = true
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
