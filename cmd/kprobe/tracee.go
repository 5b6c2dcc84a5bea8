package main

import (
	"cmp"
	"fmt"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
)

// tracee is something that `kprobe trace` probes: a process, a kernel. The verb calls
//
//	Names · Add · Run · (Sync, Poll)… · Leave · Totals, Remarks · Status · Close
//
// in this order, from one goroutine, but for Poll and Pending, which one other goroutine calls while
// this one calls Sync; what Names gives is used by a third one (the printer's) at the same time. When Add fails Leave and Close follow; when Run does, Close.
// A hit given to a function is valid until that returns; its Event stays.
type tracee interface {
	// Names finds the names that lines show.
	Names() hit.Namer
	// Add arms all definitions, or none and says why: an *event.Error where it is a
	// definition's fault. It is called once. Of the options, those that make no sense
	// for the target are refused when the flags are checked, not here.
	Add(defs []*event.Def, o *kprobes.AddOptions) error
	// Slower tells of each event that has not the fastest tactic, and why; of those for
	// which no reason is known it does not.
	Slower(tell func(name, tactic string, why error))
	// Stubs tells of each return probe that sees returns by trampoline, and why.
	Stubs(tell func(name string, why error))
	// LeftOut tells of each parameter that $arg* does not record.
	LeftOut(tell func(name, param, why string))
	// Waiting tells of each event whose object is not there yet.
	Waiting(tell func(name string, why error))
	// Inlined tells of each event at a call that was inlined: of which function, and where.
	Inlined(tell func(name, function, place string))
	// Exceeded tells of each event that its budget has disabled since it was called last, and why.
	Exceeded(tell func(name string, why error))
	// Run lets the target go on, if it was held for Add.
	Run() error
	// Poll hands over the hits that are there, in the order of their times, and gives
	// their number. It does not wait.
	Poll(f func(*hit.Hit)) int
	// Losses tells of records that found the target's ring full, by definition and CPU, and that it has not told of before: of those that
	// Poll has come upon, or of all.
	Losses(all bool, f func(d *event.Def, cpu int, records uint64))
	// Pending says whether Sync should be called now, and not only when it is time.
	Pending() bool
	// Sync follows what changes in the target, some 50 times a second. An error is told
	// and the trace goes on, unless the target has ended; that may have an error too.
	Sync() (ended bool, err error)
	// Exited is closed when the target has ended; nil for one that does not.
	Exited() <-chan struct{}
	// Leave takes everything out of the target, and hands over the hits that were left;
	// f may be nil. Totals are final then.
	Leave(f func(*hit.Hit)) error
	// Totals sums up, an entry for each event in the order of the definitions.
	Totals() []*total
	// Remarks are lines for the end of the summary's head: what went wrong on the way.
	Remarks() []string
	// Status is the exit status of a program that was started to be traced, as a
	// statusError if it is not 0; nil for all others. It waits for the program.
	Status() error
	// Close gives back what was opened, and touches the target no more.
	Close() error
}

// probed is what the tracees have in common that the engine itself probes.
type probed struct {
	core      *kprobes.Core
	evs       []*kprobes.Event
	exceeding exceeding
}

func (e *probed) Add(defs []*event.Def, o *kprobes.AddOptions) (err error) {
	e.evs, err = e.core.Add(defs, o)
	return err
}

// Core is what probes.
func (e *probed) Core() *kprobes.Core { return e.core }

// Events gives the events, in the order of the definitions.
func (e *probed) Events() []*kprobes.Event { return e.evs }

func (e *probed) Slower(tell func(name, tactic string, why error)) {
	for _, ev := range e.evs {
		if tactic, why := ev.Form(); why != nil {
			tell(ev.Name, cmp.Or(string(tactic), "none"), why)
		}
	}
}

func (e *probed) Stubs(tell func(name string, why error)) {
	for _, ev := range e.evs {
		if how, why := ev.Returns(); how == kprobes.ReturnsTrampoline {
			tell(ev.Name, why)
		}
	}
}

func (e *probed) LeftOut(tell func(name, param, why string)) {
	for _, ev := range e.evs {
		ev.LeftOut(func(param, why string) { tell(ev.Name, param, why) })
	}
}

func (e *probed) Waiting(tell func(name string, why error)) {
	space := e.core.Target().Space()
	for _, ev := range e.evs {
		if ev.Gone() {
			_, err := space.Module(cmp.Or(ev.Def.Place.Path, ev.Def.Place.Module))
			tell(ev.Name, err)
		}
	}
}

func (e *probed) Inlined(tell func(name, function, place string)) {
	for _, ev := range e.evs {
		if fn := ev.Inlined(); fn != "" {
			p := ev.Place()
			tell(ev.Name, fn, fmt.Sprintf("%s+0x%x", p.Symbol, p.Offset))
		}
	}
}

func (e *probed) Poll(f func(*hit.Hit)) int { return e.core.Poll(f) }

func (e *probed) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	engine.Of(e.core).Losses(all, f)
}

func (e *probed) Pending() bool { return e.core.Stats().Pending }

func (e *probed) Leave(f func(*hit.Hit)) error { return e.core.Close(f) }

func (e *probed) Totals() []*total { return totals(e.core, e.evs, formOf) }

// formOf tells how an event is armed.
func formOf(e *kprobes.Event) string {
	tactic, _ := e.Form()
	return string(tactic)
}

// Remarks tell of probes that had to wait for a thread.
func (e *probed) Remarks() []string {
	s := e.core.Stats()
	if s.Postponed == 0 {
		return nil
	}
	out := []string{fmt.Sprintf("%d of %d probes had to wait for a thread that was in the way, %d do still", s.Postponed, s.Probes, s.Queued)}
	for _, why := range s.Why[:min(len(s.Why), maxWaits)] {
		out = append(out, "waits: "+why)
	}
	return out
}

// maxWaits bounds the probes that are told which still wait at the end.
const maxWaits = 5

// mountable is a tracee that files can be mounted for.
type mountable interface {
	tracee
	Core() *kprobes.Core
}

// exceeding is what has been told of events that were disabled by their budgets.
type exceeding struct {
	changes uint64
	told    map[*kprobes.Event]bool
}
