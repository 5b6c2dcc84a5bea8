package engine

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes/internal/engine/change"
	"kprobes.dev/kprobes/internal/target"
)

// commit makes changes, but for those that a thread blocks and that can come later. once: what
// must be made is not tried again.
func (ed *editor) commit(cs []*functionChange, also stopping, once bool) error {
	all, work := ed.attempt(cs, also.then, once)
	var last []*functionChange
	if also.end != nil {
		last, work = ed.begin(also.last), true
		for _, ch := range last {
			ch.Whole = true
		}
		all.Next, _ = ed.attempt(last, func() error { also.end(); return nil }, once)
	}
	if !work {
		ed.made(cs)
		return nil
	}
	err := ed.commitAll(all)
	if err == nil || all.Made {
		ed.made(cs)
	}
	if err == nil || all.Next != nil && all.Next.Made {
		ed.made(last)
	}
	return err
}

// commitAll makes a change, and before it what must stand first. If a thread is in the way of that, it is armed by itself.
func (ed *editor) commitAll(all *target.Change) error {
	first, err := ed.reg.first()
	if err != nil {
		return err
	}
	if len(first) == 0 {
		return ed.t.Commit(all)
	}
	head, _ := ed.attempt(first, ed.reg.checkFirst, true)
	head.Next = all
	err = ed.t.Commit(head)
	if head.Made {
		ed.made(first)
		ed.reg.firstMade()
		return err
	}
	if errors.Is(err, target.ErrGone) {
		return err
	}
	if err := ed.reg.armFirst(); err != nil {
		return err
	}
	return ed.t.Commit(all)
}

// made notes that changes were made, but for those that were left out.
func (ed *editor) made(cs []*functionChange) {
	for _, ch := range cs {
		if ch.Commit() {
			ed.done(ch)
		}
	}
}

// attempt is what is left of changes as one for the target, and whether there is something to do: see change.All. Handlers
// may run before it returns, so the events tell how they get control then.
func (ed *editor) attempt(cs []*functionChange, then func() error, once bool) (*target.Change, bool) {
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
func (ed *editor) done(ch *functionChange) {
	f := ch.f
	ed.reg.replacing(f)
	for _, s := range f.serving {
		if len(ch.Add) == 0 || s.e.idle() || !slices.Contains(f.events, s.e) {
			s.e.lapse()
		}
	}
	clear(f.one.serving[:])
	f.sites, f.serving, f.planned = ch.Add, f.one.serving[:0], nil
	if len(f.sites) == 0 {
		f.blockedErr = nil
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
		if e.leaving != nil {
			e.leaving.stands()
		}
	}
	if f.blockedErr == nil {
		ed.queue.Remove(f)
	}
	if len(f.events) == 0 {
		f.DropCode() // events that were removed are kept for their counts
	}
	ed.reg.replaced(f)
}

// drop gives back what changes were to put in that were not made, and leaves everything as it was before them.
func (ed *editor) drop(cs []*functionChange) {
	for _, ch := range cs {
		if ch.State() == change.Committed {
			continue
		}
		ed.release(ch.Add)
		ch.Add, ch.f.blockedErr = nil, ch.blockedErr
		for _, w := range ch.was {
			if w.e.held == nil {
				w.e.become(w.armedAs)
			}
		}
	}
}
