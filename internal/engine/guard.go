package engine

import (
	"fmt"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
)

// guard adds the engine's own probes that watch over handlers to the events that are the first to
// have any.
func (c *Core) guard(evs []*Event) ([]*Event, error) {
	if c.can.Guards == nil || len(c.guards) > 0 {
		return evs, nil
	}
	for fn, call := range c.can.Guards() {
		r, err := c.t.Space().Resolve(symbol.Place{Sym: fn})
		e := &Event{Def: &event.Def{Kind: event.Probe}, knobs: &c.knobs, tail: -1, internalProbe: true}
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
