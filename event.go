package kprobes

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
)

// Event is an event that Core.Add has registered. Its fields do not change; its methods tell what does. They wait for a
// change of probes that another goroutine makes.
type Event struct {
	Group, Name string
	// Def is the definition that Add was given, or one that was made of it for a function that matches its pattern.
	Def *event.Def

	e *engine.Event
}

func init() { engine.OfEvent = func(ev any) *engine.Event { return ev.(*Event).e } }

// Place is where an event stands.
type Place struct {
	Addr   uint64 // of the instruction
	Symbol string // the function, as Core.List names it; "": none is known
	Offset uint64 // bytes from the function's start
	Module string // the name of the object that it belongs to
}

// Place tells where the event stands, or has stood before its object went; the zero Place if its object has not come yet.
func (e *Event) Place() Place { return Place(e.e.At()) }

// Form tells how the event gets control now, and why not by a faster tactic; nil for the fastest. "": it gets none, for it
// is disabled, has no place yet, waits to be armed, or was taken out.
func (e *Event) Form() (Tactic, error) { return e.e.Form() }

// Returns tells how the event sees returns, and why not at the exits; "" for one that is no return probe, or has no place yet.
func (e *Event) Returns() (Returns, error) {
	how, why := e.e.Returns()
	return Returns(how), why
}

// LeftOut tells f of each parameter that $arg* stands for and that is not recorded, and why.
func (e *Event) LeftOut(f func(param, why string)) {
	for _, l := range e.e.LeftOut() {
		f(l.Name, l.Why)
	}
}

// Inlined is the function whose call was inlined where the event stands (AddOptions.Inlines); "": it stands at no such call.
func (e *Event) Inlined() string { return e.e.Inlined() }

// Gone says whether the event's object is not mapped at present: [GONE] in the listing.
func (e *Event) Gone() bool { return e.e.Gone() }

// show makes Events of events that have been added.
func show(evs []*engine.Event) {
	room := make([]Event, len(evs))
	for i, e := range evs {
		room[i] = Event{Group: e.Group, Name: e.Name, Def: e.Def, e: e}
		e.Shown = &room[i]
	}
}

// shown are events as users know them.
func shown(evs []*engine.Event) []*Event {
	if evs == nil {
		return nil
	}
	out := make([]*Event, len(evs))
	for i, e := range evs {
		out[i] = e.Shown.(*Event)
	}
	return out
}
