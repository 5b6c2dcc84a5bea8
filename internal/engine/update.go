package engine

import (
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/engine/change"
	"kprobes.dev/kprobes/internal/target"
)

// update brings the sites of functions to what their events want, in one stop.
func (ed *editor) update(fns []*function, also stopping) error {
	return ed.updateOr(fns, func(_ *function, err error) error { return err }, also)
}

// updateOr is update; mend may change the events of a function whose code can not be
// generated: nil says that it is to be tried again.
//
// A function that a thread blocks does not hold up the others: its new code is put in later,
// unless something that its old code does must end.
func (ed *editor) updateOr(fns []*function, mend func(*function, error) error, also stopping) error {
	if ed.dependents != nil {
		fns = ed.dependents(fns)
	}
	cs := ed.begin(fns)
	for failed := ed.make(cs); len(failed) > 0; failed = ed.remakeUnlinked(cs) {
		for _, ch := range failed {
			for ch.err != nil {
				if err := mend(ch.f, ch.err); err != nil {
					ed.drop(cs)
					return err
				}
				_ = ed.remake(ch) // ch.err
			}
		}
	}
	soft := slices.DeleteFunc(slices.Clone(cs), func(ch *functionChange) bool { return !ch.Whole || !ch.mayTrap() })
	err := ed.commit(cs, also, len(soft) > 0)
	if len(soft) > 0 && errors.Is(err, target.ErrBlocked) {
		for _, ch := range soft {
			if ch.State() != change.Committed {
				ed.trap(ch, err)
			}
		}
		if err = ed.commit(cs, also, false); err == nil {
			ed.tried(soft)
		}
	}
	if errors.Is(err, target.ErrBlocked) {
		cs, err = ed.disarmBlocked(cs, also)
	}
	if err != nil {
		ed.drop(cs)
		return err
	}
	ed.postpone(blocked(cs))
	ed.reg.note()
	return nil
}

// disarmBlocked makes changes that end something, and in whose way a thread is: the old code is taken out,
// which nothing is in the way of, and what the function's other events want comes later. It gives
// the changes, or with an error those that were not made.
func (ed *editor) disarmBlocked(cs []*functionChange, also stopping) ([]*functionChange, error) {
	var hard []*functionChange
	for _, ch := range cs {
		if ch.Whole && ch.State() != change.Committed {
			ch.Whole = false
			hard = append(hard, ch)
		}
	}
	if err := ed.commit(cs, stopping{}, false); err != nil {
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
		ed.release(ch.Add)
		ch.Add, ch.now, ch.Whole = nil, nil, true
	}
	err := ed.commit(rest, also, false)
	for _, ch := range rest {
		if ch.State() == change.Committed { // also where what is done besides has failed
			ed.unarm(ch.f, why[ch])
		}
	}
	ed.tried(rest)
	if err != nil {
		return append(blocked(cs), rest...), err
	}
	return cs, nil
}

// unarm queues a function whose code was taken out.
func (ed *editor) unarm(f *function, why error) {
	for _, e := range f.events {
		if !e.idle() {
			e.become(armedAs{why: queued(why)})
		}
	}
	if len(f.events) > 0 {
		ed.queue.Put(f, why)
	}
}

// requeueDisarmed queues functions whose code was taken out though their events want it: what was to
// come in its place could not be put in.
func (ed *editor) requeueDisarmed(fns []*function, err error) {
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
			ed.queue.Put(f, err)
			cs = append(cs, &functionChange{f: f})
		}
	}
	ed.tried(cs)
}

// Attempts at what a thread is in the way of, before it is left to the optimiser.
const (
	postponeTries = 10
	postponeWait  = time.Millisecond // times the number of the attempt
)

// postpone does what can be done at once for functions that a thread is in the way of: most do
// not stand there for long. Breakpoints take no byte that a thread could stand in: where they
// may stand they serve meanwhile. What is left is queued.
func (ed *editor) postpone(cs []*functionChange) {
	wait := cs
	for _, ch := range cs {
		why := ch.Why()
		if ch.mayTrap() {
			ed.trap(ch, why)
		}
		ed.queue.Put(ch.f, why)
	}
	tries := postponeTries
	if ed.knobs.background {
		tries = 1
	}
	for i := 0; len(cs) > 0 && i < tries; i++ {
		time.Sleep(time.Duration(i) * postponeWait)
		if err := ed.commit(cs, stopping{}, false); err != nil {
			for _, ch := range cs {
				ch.Block(err)
			}
			break
		}
		cs = blocked(cs)
	}
	for _, ch := range cs {
		ed.leave(ch)
	}
	ed.tried(wait)
}

// trap has the code of a change made anew, with breakpoints in place of jumps, and the function
// queued. If it can not be made the change stays as it is.
func (ed *editor) trap(ch *functionChange, why error) {
	f, late, sites, now := ch.f, ch.f.blockedErr, ch.Add, ch.now
	f.blockedErr = queued(why)
	if err := ed.remake(ch); err != nil {
		f.blockedErr, ch.Add, ch.now, ch.err = late, sites, now, nil
		return
	}
	ed.release(sites)
	ed.queue.Put(f, why)
}

// leave gives a change up that is still blocked: what the old sites serve goes on as it was,
// the rest is not armed.
func (ed *editor) leave(ch *functionChange) {
	ed.drop([]*functionChange{ch})
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

// tried counts those of changes that were postponed, and has the optimiser look after what is
// left of them.
func (ed *editor) tried(cs []*functionChange) {
	for _, ch := range cs {
		if q := ed.queue.Get(ch.f); q == nil {
			continue
		} else if err := ch.Why(); err != nil {
			q.Why = err
		}
		for _, e := range ch.f.events {
			if !e.idle() && !ed.knobs.background {
				ed.postponed++
			}
		}
	}
	if ed.queue.Len() == 0 || ed.knobs.background {
		return
	}
	pause := ed.queue.Begin()
	if ed.timer == nil {
		ed.timer = time.AfterFunc(pause, ed.again)
		return
	}
	ed.timer.Reset(pause)
}
