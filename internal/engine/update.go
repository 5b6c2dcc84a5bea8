package engine

import (
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/engine/change"
	"kprobes.dev/kprobes/internal/target"
)

// stopping is what else is done in the stop in which changes are made. Changes of the engine's own probes come
// before all others if they put them in, and after them if they take them out, so that a tracer that dies in between
// leaves no code that relies on them without them.
type stopping struct {
	then func() error // once the changes are made; nil: nothing
	last []*function  // whose changes come after the others, for a target.Sequencer
	end  func()       // once these are made
}

// update brings the sites of functions to what their events want, in one stop.
func (c *Core) update(fns []*function, also stopping) error {
	return c.updateOr(fns, func(_ *function, err error) error { return err }, also)
}

// updateOr is update; mend may change the events of a function whose code can not be
// generated: nil says that it is to be tried again.
//
// A function that a thread blocks does not hold up the others: its new code is put in later,
// unless something that its old code does must end.
func (c *Core) updateOr(fns []*function, mend func(*function, error) error, also stopping) error {
	cs := c.begin(fns)
	for _, ch := range c.make(cs) {
		for ch.err != nil {
			if err := mend(ch.f, ch.err); err != nil {
				c.drop(cs)
				return err
			}
			_ = c.remake(ch) // ch.err
		}
	}
	soft := slices.DeleteFunc(slices.Clone(cs), func(ch *functionChange) bool { return !ch.Whole || !ch.mayTrap() })
	err := c.commit(cs, also, len(soft) > 0)
	if len(soft) > 0 && errors.Is(err, target.ErrBlocked) {
		for _, ch := range soft {
			if ch.State() != change.Committed {
				c.trap(ch, err)
			}
		}
		if err = c.commit(cs, also, false); err == nil {
			c.tried(soft)
		}
	}
	if errors.Is(err, target.ErrBlocked) {
		cs, err = c.disarmBlocked(cs, also)
	}
	if err != nil {
		c.drop(cs)
		return err
	}
	c.postpone(blocked(cs))
	c.note()
	return nil
}

// disarmBlocked makes changes that end something, and in whose way a thread is: the old code is taken out,
// which nothing is in the way of, and what the function's other events want comes later. It gives
// the changes, or with an error those that were not made.
func (c *Core) disarmBlocked(cs []*functionChange, also stopping) ([]*functionChange, error) {
	var hard []*functionChange
	for _, ch := range cs {
		if ch.Whole && ch.State() != change.Committed {
			ch.Whole = false
			hard = append(hard, ch)
		}
	}
	if err := c.commit(cs, stopping{}, false); err != nil {
		return cs, err
	}
	rest := blocked(hard)
	why := map[*functionChange]error{}
	for _, ch := range rest { // what other probes need must not be away for a moment
		if slices.ContainsFunc(ch.f.events, func(e *Event) bool { return e.internalProbe && !e.idle() }) {
			return blocked(cs), ch.Why()
		}
	}
	for _, ch := range rest {
		why[ch] = ch.Why()
		c.release(ch.Add)
		ch.Add, ch.now, ch.Whole = nil, nil, true
	}
	err := c.commit(rest, also, false)
	for _, ch := range rest {
		if ch.State() == change.Committed { // also where what is done besides has failed
			c.unarm(ch.f, why[ch])
		}
	}
	c.tried(rest)
	if err != nil {
		return append(blocked(cs), rest...), err
	}
	return cs, nil
}

// unarm queues a function whose code was taken out.
func (c *Core) unarm(f *function, why error) {
	for _, e := range f.events {
		if !e.idle() {
			e.become(armedAs{why: queued(why)})
		}
	}
	if len(f.events) > 0 {
		c.queue.Put(f, why)
	}
}

// requeueDisarmed queues functions whose code was taken out though their events want it: what was to
// come in its place could not be put in.
func (c *Core) requeueDisarmed(fns []*function, err error) {
	var cs []*functionChange
	for _, f := range fns {
		n := 0
		for _, e := range f.events {
			if !e.idle() && !e.serves() {
				e.become(armedAs{why: queued(err)})
				n++
			}
		}
		if n > 0 {
			c.queue.Put(f, err)
			cs = append(cs, &functionChange{f: f})
		}
	}
	c.tried(cs)
}

// Attempts at what a thread is in the way of, before it is left to the optimiser.
const (
	postponeTries = 10
	postponeWait  = time.Millisecond // times the number of the attempt
)

// postpone does what can be done at once for functions that a thread is in the way of: most do
// not stand there for long. Breakpoints take no byte that a thread could stand in: where they
// may stand they serve meanwhile. What is left is queued.
func (c *Core) postpone(cs []*functionChange) {
	wait := cs
	for _, ch := range cs {
		why := ch.Why()
		if ch.mayTrap() {
			c.trap(ch, why)
		}
		c.queue.Put(ch.f, why)
	}
	tries := postponeTries
	if c.background {
		tries = 1
	}
	for i := 0; len(cs) > 0 && i < tries; i++ {
		time.Sleep(time.Duration(i) * postponeWait)
		if err := c.commit(cs, stopping{}, false); err != nil {
			for _, ch := range cs {
				ch.Block(err)
			}
			break
		}
		cs = blocked(cs)
	}
	for _, ch := range cs {
		c.leave(ch)
	}
	c.tried(wait)
}

// trap has the code of a change made anew, with breakpoints in place of jumps, and the function
// queued. If it can not be made the change stays as it is.
func (c *Core) trap(ch *functionChange, why error) {
	f, late, sites, now := ch.f, ch.f.blockedErr, ch.Add, ch.now
	f.blockedErr = queued(why)
	if err := c.remake(ch); err != nil {
		f.blockedErr, ch.Add, ch.now, ch.err = late, sites, now, nil
		return
	}
	c.release(sites)
	c.queue.Put(f, why)
}

// mayTrap says whether breakpoints may stand in the function in place of jumps.
func (f *function) mayTrap() bool {
	return f.noTraps() == nil && f.wish.force == "" && !f.jumpOnly
}

// leave gives a change up that is still blocked: what the old sites serve goes on as it was,
// the rest is not armed.
func (c *Core) leave(ch *functionChange) {
	c.drop([]*functionChange{ch})
	why := queued(ch.Why())
	for _, e := range ch.f.events {
		switch {
		case e.idle():
		case !e.serves():
			e.become(armedAs{why: why})
		case e.form.why != nil: // a breakpoint that stood before
			e.become(armedAs{e.form.tactic, why})
		}
	}
}
