package engine

import (
	"cmp"
	"slices"

	"kprobes.dev/kprobes/internal/target"
)

// generate makes the code that a change is to put in, with room in y, and says how each event gets control by it, or why
// there is no such code.
func (c *Core) generate(ch *functionChange, y *codeArena) {
	f := ch.f
	ch.Add, ch.now, ch.err = nil, nil, nil
	if len(f.events) == 0 {
		return
	}
	clear(y.ops)
	for _, e := range inOrder(f.events) {
		if e.idle() {
			continue
		}
		if ch.err = e.works(y.ops); ch.err != nil {
			return
		}
	}
	stands := c.can.Stands
	if len(f.sites) > 0 { // a function that has code keeps its place: what must end is to end
		stands = nil
	}
	p := f.plan(nil)
	if ch.Add, ch.err = p.Sites(c.t.Arch(), y.ops, y, c.t.CodegenEnv(), stands); ch.err != nil {
		c.release(ch.Add)
		ch.Add = nil
		return
	}
	for _, e := range f.events {
		if !e.idle() {
			tactic, why := p.Form(e.points)
			ch.now = append(ch.now, eventForm{e, armedAs{tactic, why}})
		}
	}
}

// release gives back the room of detours that were not installed.
func (c *Core) release(sites []*target.Site) {
	for _, s := range sites {
		c.free(s.Detour.Addr, s.Room)
	}
}

// inOrder gives events in the order of their registration: so is their work done.
func inOrder(evs []*Event) []*Event {
	if len(evs) < 2 {
		return evs
	}
	out := slices.Clone(evs)
	slices.SortStableFunc(out, func(a, b *Event) int { return cmp.Compare(a.seq, b.seq) })
	return out
}
