package kprobes

import (
	"fmt"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/symbol"
)

// guarded is a Target in which a handler's panic is caught where the runtime begins it: by a
// call that is made at a function's entry.
type guarded interface {
	Guard() (symbol.Place, *arch.Call)
}

// guard adds the engine's own probe that catches panics of handlers to the events that are
// the first to have any.
func (c *Core) guard(evs []*Event) ([]*Event, error) {
	t, ok := c.t.(guarded)
	if !ok || c.catcher != nil {
		return evs, nil
	}
	pl, call := t.Guard()
	r, err := c.t.Space().Resolve(pl)
	if err != nil {
		return nil, fmt.Errorf("a handler's panic could not be caught: %w", err)
	}
	e := &Event{Def: &event.Def{Kind: event.Probe}, core: c, tail: -1, hook: true}
	e.work = arch.Work{Role: arch.RoleCall, Call: call, Count: true}
	if err := c.locate(e, r); err != nil {
		return nil, fmt.Errorf("a handler's panic could not be caught: %w", err)
	}
	c.catcher = e
	return append(evs, e), nil
}
