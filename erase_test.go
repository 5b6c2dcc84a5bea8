package kprobes

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes/event"
)

// TestEraseTwice: an event that was left out of an addition, which fails then as a whole, gives its
// numbers back once. Twice in the list they would be two other events'.
func TestEraseTwice(t *testing.T) {
	c := &Core{events: make([]*Event, 2)}
	e := &Event{core: c, Def: &event.Def{Kind: event.Return}, ID: 0, tail: 1}
	c.events[0] = e
	if ids := append(c.erase([]*Event{e}), c.erase([]*Event{e})...); !slices.Equal(ids, []int{0, 1}) {
		t.Errorf("numbers %d", ids)
	}
}
