package engine

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/plan"
)

// List writes the probes and events in the order of their registration: see kprobes.Core.List.
func (c *Core) List(w io.Writer) error {
	c.mu.Lock()
	lines := c.listing()
	c.mu.Unlock()
	_, err := io.WriteString(w, lines)
	return err
}

func (c *Core) listing() string {
	var evs []*Event
	for _, e := range c.events {
		if e != nil && !e.ended && !e.internalProbe {
			evs = append(evs, e)
		}
	}
	slices.SortFunc(evs, func(a, b *Event) int { return cmp.Compare(a.seq, b.seq) })
	var b strings.Builder
	for _, e := range evs {
		e.line(&b, e.tags())
	}
	return b.String()
}

// ListDisabled writes a line for each of some definitions of which no event is registered.
func (c *Core) ListDisabled(w io.Writer, defs []*event.Def) error {
	var b strings.Builder
	c.mu.Lock()
	for _, d := range defs {
		e := &Event{Def: d, knobs: &c.knobs}
		r, err := c.resolve(d)
		if err == nil && d.Kind != event.Watch {
			r, err = c.scan.Implementation(r)
		}
		state := "[GONE]"
		if err == nil {
			e.Place, state = r, "[DISABLED]"
		}
		e.line(&b, state)
	}
	c.mu.Unlock()
	_, err := io.WriteString(w, b.String())
	return err
}

// line writes an event's line.
func (e *Event) line(b *strings.Builder, state string) {
	place, module := e.Def.Place.Symbol, " "
	if r := e.Place; r.Func != nil {
		place = fmt.Sprintf("%s+0x%x", printable(r.Func.Pretty()), r.Offset)
	} else if e.watches() {
		place = printable(e.Def.Place.String())
	}
	if e.elsewhere() {
		module = printable(e.Place.Module.Name)
	}
	fmt.Fprintf(b, "%x  %c  %s  %s %s\n", e.Place.Addr, e.kind(), place, module, state)
}

// kind is what the listing calls the event.
func (e *Event) kind() byte {
	switch {
	case e.h != nil && e.h.h.Jump != nil:
		return 'j'
	case e.Def.Kind == event.Return:
		return 'r'
	case e.watches():
		return 'w'
	}
	return 'k'
}

// tags are the event's state as the listing shows it.
func (e *Event) tags() string {
	var s string
	switch {
	case e.over != nil:
		return "[DISABLED] " + printable(e.over.Error())
	case e.gone:
		s = "[GONE]"
	case e.h != nil && (e.h.disabled || e.h.h.Off()):
		s = "[DISABLED]"
	case e.form.tactic == arch.TacticJump && !e.idle() && e.plain() == nil:
		s = "[OPTIMIZED]"
	default:
		return e.unoptimised()
	}
	if e.h != nil {
		if err := e.h.h.Err(); err != nil {
			s += " " + printable(err.Error())
		}
	}
	return s
}

// unoptimised tells how an event gets control that is no jump, and why.
func (e *Event) unoptimised() string {
	why := e.form.why
	var p *plan.QueuedError
	if e.form.tactic == arch.TacticJump {
		why = e.plain()
	}
	switch {
	case e.knobs.off && !e.internalProbe:
		return "unarmed: kprobes/enabled is 0"
	case e.withdrawn != nil:
		return plainly(e.withdrawn)
	case e.form.tactic == "" && errors.As(why, &p):
		return "postponed: " + plainly(p.Why)
	case why == nil:
		return string(e.form.tactic)
	}
	return string(e.form.tactic) + ": " + plainly(why)
}
