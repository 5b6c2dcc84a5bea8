package engine

import (
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
)

// An instance of a return probe lives until its call returns. Two kinds never do: those of
// calls that were in progress when the probe went, whose returns nobody sees any more, and
// those of calls that were left, by unwinding or by the end of their thread. The former are
// given back when the probe goes; for the latter the target is looked at when so many
// instances are taken that they might be the reason.

// Times between two looks that have found nothing: each is twice the one before. Leftovers are
// in nobody's way for a while.
const (
	reapFirst    = keepEvery
	reapLast     = 10 * time.Second
	leftoverWait = time.Second
	lingerFirst  = time.Second
	lingerLast   = time.Minute
)

// takeBack gives instances back. It stops the target only where there may be some.
func (c *Core) takeBack() {
	t := c.can.Reaper
	if t == nil || time.Now().Before(c.reaping.again) {
		return
	}
	live := c.liveReturns()
	full := len(live) > 0 && (c.missing(live) || t.Crowded())
	lingers := !full && c.lingers(live)
	if len(c.reaping.left) == 0 && !full && !lingers {
		c.reaping.pause = 0
		return
	}
	if !full && !lingers && time.Since(c.reaping.last) < leftoverWait {
		return
	}
	c.reaping.last = time.Now()
	r, err := c.reap(c.reaping.left, full || lingers)
	took := err == nil && r.Took()
	switch {
	case took:
		c.reaping.linger = lingerFirst
	case lingers:
		c.reaping.linger = min(max(2*c.reaping.linger, lingerFirst), lingerLast)
	}
	if took || lingers {
		c.reaping.pause = 0
		return
	}
	c.reaping.pause = min(max(2*c.reaping.pause, reapFirst), reapLast)
	c.reaping.again = time.Now().Add(c.reaping.pause)
}

// lingers says whether it is time to look for calls that were left though nobody needs their
// instances: so that they are counted. Such looks stop the target, and become rarer.
func (c *Core) lingers(live []int) bool {
	if len(live) == 0 || time.Since(c.reaping.last) < c.reaping.linger {
		return false
	}
	n := c.tally()
	return slices.ContainsFunc(live, func(id int) bool { return n[id] > 0 })
}

// tally counts the instances of each event, as they were a few milliseconds ago: counting takes a
// tenth of the time at most.
func (c *Core) tally() map[int]int {
	t := c.can.Tallier
	if t == nil || time.Now().Before(c.reaping.taken.until) {
		return c.reaping.taken.of
	}
	start := time.Now()
	n, err := t.Tally()
	if err != nil {
		n = nil
	}
	c.reaping.taken = tally{n, time.Now().Add(9 * time.Since(start))}
	return n
}

// inProgress is how many calls of a return probe have an instance.
func (c *Core) inProgress(e *Event) uint64 {
	if e.work.Pool == nil {
		return 0
	}
	return uint64(c.tally()[e.ID])
}

// liveReturns lists the numbers of the return probes that are registered.
func (c *Core) liveReturns() (ids []int) {
	for _, e := range c.events {
		if e != nil && !e.ended && e.work.Pool != nil {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// missingEvery is the number of events that missing asks at each turn.
const missingEvery = 256

// missing says whether entries have found no instance since it was asked last: of some of the
// events, each time of others.
func (c *Core) missing(ids []int) bool {
	r := c.t.Ring()
	if r == nil {
		return false
	}
	n := (len(ids) + missingEvery - 1) / missingEvery
	c.reaping.turn = (c.reaping.turn + 1) % n
	lo := c.reaping.turn * missingEvery
	grown := false
	for _, id := range ids[lo:min(lo+missingEvery, len(ids))] {
		e := c.events[id]
		if m := r.Sum(id).Missed; m != e.missed {
			e.missed, grown = m, true
		}
	}
	return grown
}

// reap takes instances back in one stop: all of events that have ended, and if asked for of the
// others those of calls that were left. What has ended and has none any more is forgotten.
func (c *Core) reap(ended []leftover, others bool) (*target.Reap, error) {
	r := &target.Reap{Live: c.liveReturns(), Left: others, Ended: map[int]bool{}}
	for _, l := range ended {
		r.Ended[l.e.ID] = true
	}
	t := c.can.Reaper
	if t == nil {
		return r, errors.ErrUnsupported
	}
	c.reaping.taken = tally{}
	err := t.Reap(r)
	for _, e := range c.events { // also what was freed before an error
		if e != nil && !r.Ended[e.ID] {
			e.reaped += uint64(r.Unwound[e.ID])
		}
	}
	for _, l := range ended {
		l.e.reaped += uint64(r.Unwound[l.e.ID])
		l.e.cut += uint64(r.Active[l.e.ID])
		l.e.empty = r.Whole && err == nil
		c.settled(l.e)
	}
	if err != nil {
		return r, err
	}
	if r.Whole {
		c.emptied()
	}
	return r, nil
}

// settled tells the probe of the event, if it was unregistered, what has become of the calls that had
// an instance then.
func (c *Core) settled(e *Event) {
	if e.h == nil || !e.h.ended.Load() {
		return
	}
	last := e.h.last.Load()
	if last == nil {
		return
	}
	s := *last
	s.Unwound, s.Active = uint64(e.unwound)+e.reaped, uint64(e.active)+e.cut
	if r := c.t.Ring(); r != nil {
		s.Unwound += r.Sum(e.ID).Unwound
	}
	if !e.empty {
		s.Active += c.inProgress(e)
	}
	e.h.last.Store(&s)
}

// emptied forgets those of the leftovers that have no instances any more.
func (c *Core) emptied() {
	var ids []int
	c.reaping.left = slices.DeleteFunc(c.reaping.left, func(l leftover) bool {
		if !l.e.empty {
			return false
		}
		c.endPool(l.pool)
		if i := slices.Index(c.returnIDs, l.e.ID); i >= 0 && c.events[l.e.ID] == nil {
			c.returnIDs = slices.Delete(c.returnIDs, i, i+1)
			ids = append(ids, l.e.ID)
		}
		return true
	})
	c.cool(ids...)
}

// leaves gives what is done in the stop that takes the code of events out: calls in progress
// are forgotten. What can not be done then is left for later.
func (c *Core) leaves(evs []*Event) func() error {
	var ended []leftover
	for _, e := range evs {
		if e.work.Pool != nil && !e.empty {
			ended = append(ended, leftover{e, e.work.Pool})
		}
	}
	if c.can.Reaper == nil || c.can.Own || len(ended) == 0 {
		return nil // the own process would be stopped once more for it
	}
	return func() error {
		_, _ = c.reap(ended, false) // what is not empty then is left over
		return nil
	}
}

// leftovers has the reaper give back what events have left in their pools.
func (c *Core) leftovers(evs []*Event) {
	for _, e := range evs {
		if e.work.Pool == nil {
			continue
		}
		if c.can.Reaper == nil || e.empty {
			c.endPool(e.work.Pool)
			continue
		}
		c.reaping.left = append(c.reaping.left, leftover{e, e.work.Pool})
	}
	if len(c.reaping.left) > 0 {
		c.startReaper()
	}
}

// endPool gives a pool back that no probe's code uses any more.
func (c *Core) endPool(p *arch.Pool) {
	if c.can.EndPool != nil {
		c.can.EndPool(p)
	}
}

// cool makes the numbers of probes that are gone free, as soon as no thread can count for them.
func (c *Core) cool(ids ...int) {
	if len(ids) == 0 {
		return
	}
	c.coolingIDs = append(c.coolingIDs, ids...)
	if c.quiescent() {
		c.freeIDs, c.coolingIDs = append(c.freeIDs, c.coolingIDs...), nil
	}
}

// quiescent says whether no thread is in code that has been taken out.
func (c *Core) quiescent() bool {
	return c.can.Idle == nil || c.can.Idle()
}

// calmed is quiescent, but a thread that is in such code gets time to leave it: the target looks
// again where it does so only when it is changed.
func (c *Core) calmed() bool {
	for try := range calmTries {
		if c.quiescent() {
			return true
		}
		time.Sleep(time.Duration(try) * time.Millisecond)
		if c.t.Commit(&target.Change{}) != nil {
			return false
		}
	}
	return c.quiescent()
}

// calmTries is how often threads are looked for that are in code which has been taken out.
const calmTries = 10

// reclaimReturnIDs makes those numbers of return probes free that no instance has any more.
func (c *Core) reclaimReturnIDs() {
	active, unwound, err := c.t.Instances()
	if err != nil {
		return
	}
	var ids []int
	c.returnIDs = slices.DeleteFunc(c.returnIDs, func(id int) bool {
		if active[id]+unwound[id] > 0 {
			return false
		}
		c.reaping.left = slices.DeleteFunc(c.reaping.left, func(l leftover) bool {
			if l.e.ID == id {
				c.endPool(l.pool)
			}
			return l.e.ID == id
		})
		ids = append(ids, id)
		return true
	})
	c.cool(ids...)
}

// forgetInFlight takes back the instances of calls that were in progress when return probes which are to be
// armed again were disarmed: new code does not see the returns (arch.ProbeOp.Epoch). They count as in progress.
// What a thread in the old code keeps from being taken back counts as left, some time later.
func (c *Core) forgetInFlight(evs []*Event) {
	end := time.Now().Add(anewWait)
	for try := 1; !c.forgets(evs) && (try < anewTries || time.Now().Before(end)); try++ {
		time.Sleep(time.Millisecond)
	}
}

// Bounds of the waiting for threads that are in the code of probes that were disarmed. On a machine that has much else to do
// even a stop may fail.
const (
	anewWait  = time.Second
	anewTries = 10
)

// forgets takes the instances of return probes back that have no code, in one stop. False: a
// thread may still take one.
func (c *Core) forgets(evs []*Event) bool {
	var old []leftover
	for _, e := range evs {
		if e.Def.Kind != event.Return {
			continue
		}
		if e.work.Pool != nil && (!e.empty || e.noEntryHandler()) {
			old = append(old, leftover{e, e.work.Pool})
		}
		e.empty = false
	}
	if len(old) == 0 {
		return true
	}
	r, err := c.reap(old, false)
	for _, l := range old {
		l.e.empty = false
		n := uint64(r.Unwound[l.e.ID])
		l.e.reaped, l.e.cut = l.e.reaped-n, l.e.cut+n
	}
	return r.Whole && err == nil || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, target.ErrGone)
}

// retire forgets the event of a probe that is not armed any more, and gives its number, which may
// serve again. What it has left in its pool is given back.
func (c *Core) retire(e *Event) (ids []int) {
	if e.ID >= len(c.events) || c.events[e.ID] != e {
		return nil // it got no number
	}
	c.leftovers([]*Event{e})
	c.events[e.ID] = nil
	if e.Def.Kind == event.Return && !e.empty {
		c.returnIDs = append(c.returnIDs, e.ID)
		return nil
	}
	return []int{e.ID}
}
