package kprobes

import (
	"fmt"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
)

// guarded is a Target in which what handlers must not do is met where it begins: by calls that are made
// at the entries of functions, by name.
type guarded interface {
	Guards() map[string]*arch.Call
}

// guard adds the engine's own probes that watch over handlers to the events that are the first to
// have any.
func (c *Core) guard(evs []*Event) ([]*Event, error) {
	t, ok := c.t.(guarded)
	if !ok || len(c.guards) > 0 {
		return evs, nil
	}
	for fn, call := range t.Guards() {
		r, err := c.t.Space().Resolve(symbol.Place{Sym: fn})
		e := &Event{Def: &event.Def{Kind: event.Probe}, core: c, tail: -1, internalProbe: true}
		e.work = arch.ProbeOp{Role: arch.RoleCall, Call: call, Count: true}
		if err == nil {
			err = c.locate(e, r)
		}
		if err != nil {
			c.guards = nil
			return nil, fmt.Errorf("what a handler does wrong could not be met in %s: %w", fn, err)
		}
		c.guards, evs = append(c.guards, e), append(evs, e)
	}
	return evs, nil
}
