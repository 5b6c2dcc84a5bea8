package engine

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/engine/instances"
)

// TestEraseTwice: an event that was left out of an addition, which fails then as a whole, gives its
// numbers back once. Twice in the list they would be two other events'.
func TestEraseTwice(t *testing.T) {
	c := &Core{events: make([]*Event, 2), reclaimer: &instances.Reclaimer{}}
	e := &Event{knobs: &c.knobs, Def: &event.Def{Kind: event.Return}, ID: 0, tail: 1}
	c.events[0] = e
	if ids := append(c.erase([]*Event{e}), c.erase([]*Event{e})...); !slices.Equal(ids, []int{0, 1}) {
		t.Errorf("numbers %d", ids)
	}
}

// TestDoneForGood: a function without events is forgotten, and lets go of its code. One that was
// forgotten before does not take away that which is probed at its place now.
func TestDoneForGood(t *testing.T) {
	old := &function{Function: codescan.Function{Start: 1, Code: struct{ arch.Function }{}}}
	now := &function{Function: codescan.Function{Start: 1}}
	c := &Core{fns: map[uint64]*function{1: old}}
	old.knobs, c.reg = &c.knobs, c
	c.done(&functionChange{f: old})
	if len(c.fns) > 0 || old.Code != nil {
		t.Errorf("%d functions, code %v", len(c.fns), old.Code)
	}
	c.fns[1] = now
	c.done(&functionChange{f: old})
	if c.fns[1] != now {
		t.Error("the new function was forgotten")
	}
}
