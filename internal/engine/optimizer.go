package engine

import (
	"errors"

	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/target"
)

// What a thread blocks is not refused: it is put in later. A breakpoint takes one byte, in
// which no thread can stand in the middle, so a function whose jumps are blocked gets
// breakpoints at once, if these may stand there, with the same detours; a hit takes a trap and
// no step. Else the function's new probes are not armed yet, and its old ones stay as they
// are. Either way it is queued, and the optimiser tries again until it has its final form, or
// does not want it any more.

// keepOptimizing is the optimiser's work. It goes on until nothing is queued.
func (ed *editor) keepOptimizing() {
	ed.knobs.lock.Lock()
	defer ed.knobs.lock.Unlock()
	if ed.queue.Len() == 0 {
		return
	}
	ed.knobs.background = true
	err := ed.optimize()
	ed.knobs.background = false
	ed.reg.note()
	if errors.Is(err, target.ErrGone) {
		ed.queue.Clear()
		return
	}
	if ed.queue.Len() > 0 {
		ed.timer.Reset(ed.queue.Next())
	}
}

// optimize tries to give the functions that are queued their final form. One that has
// breakpoints meanwhile keeps them if that fails; one that has not gets them now, if it can.
func (ed *editor) optimize() error {
	fns := ed.queue.Functions(byStart)
	err := ed.optimizeAll(fns)
	if err == nil || errors.Is(err, target.ErrGone) || len(fns) < 2 {
		return err
	}
	for _, f := range fns { // one that can not be changed does not hold up the others
		if ed.queue.Get(f) != nil {
			err = ed.optimizeAll([]*function{f})
		}
	}
	return err
}

// optimizeAll is optimize for some of the functions, in one stop.
func (ed *editor) optimizeAll(fns []*function) error {
	cs := make([]*functionChange, 0, len(fns))
	for _, f := range fns {
		ch := new(functionChange)
		ch.begin(f)
		ch.Whole, f.blockedErr = false, nil
		if err := ed.remake(ch); err != nil {
			ed.queue.Put(f, err)
			ed.drop([]*functionChange{ch})
			continue
		}
		cs = append(cs, ch)
	}
	if err := ed.commit(cs, stopping{}, false); err != nil {
		ed.drop(cs)
		for _, ch := range cs {
			ed.queue.Put(ch.f, err)
		}
		return err
	}
	var unarmed []*functionChange
	for _, ch := range blocked(cs) {
		ed.queue.Put(ch.f, ch.Why())
		if ch.blockedErr == nil {
			unarmed = append(unarmed, ch)
			continue
		}
		ch.blockedErr = queued(ch.Why())
		ed.leave(ch)
		ch.f.updateQueued()
	}
	ed.postpone(unarmed)
	return nil
}

// updateQueued has the function's events tell what they wait for now.
func (f *function) updateQueued() {
	for _, e := range f.events {
		var p *plan.QueuedError
		if errors.As(e.form.why, &p) {
			e.form.why = f.blockedErr
		}
	}
}
