package self

import (
	"testing"
	"unsafe"

	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

var (
	reapedSlot [4]uint64  // a slot of a pool
	callsStack [16]uint64 // the stack of a goroutine
)

// TestReapAgain: a call was left, and its slot is freed in the first of two attempts; before the second
// one the same goroutine makes the same call again, which takes the slot by the same key. The call
// that was left counts, and the slot is the new call's.
func TestReapAgain(t *testing.T) {
	const (
		key, event, ret = 0x1234, 5, 0x4000
		goid            = 7
		dist            = 8 * 8
	)
	at := func(p *uint64) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }
	hi := at(&callsStack[0]) + uint64(len(callsStack))*8
	slot, stack := &reapedSlot, &callsStack
	calls := func(on bool) { // the goroutine's call, and its instance
		slot[0], slot[1], slot[2] = key, event, ret
		if stack[8] = 0; on {
			stack[8] = ret
		}
	}
	removed := siteAt(first, 5, 0x300000, []uint64{first}, behind)
	p := &plan{
		places:     &places{},
		goroutines: make([]goroutine, 2),
		counted:    1,
		retired:    patch.NewRetired([]*target.Site{removed}),
		reclaimable: []reclaimable{
			{addr: at(&slot[0]), key: key, event: event, ret: ret, goid: goid, dist: dist},
			{addr: at(&slot[0]), key: key + 1, event: event + 1, ended: true, goid: goid + 1}, // keeps the first attempt from being the last
		},
	}
	p.retired.Mark(removed.Detour.Addr)
	p.goroutines[0] = goroutine{id: goid, sp: at(&stack[0]), lo: at(&stack[0]), hi: hi}
	var w worldState

	calls(false)
	p.reap(&w)
	if !p.unsettled || slot[0] != 0 {
		t.Fatalf("after the first attempt: unsettled: %v, the slot's key is %#x, want true and 0", p.unsettled, slot[0])
	}
	calls(true)
	p.reap(&w)
	if slot[0] != key {
		t.Error("the slot of a call in progress was freed")
	}
	r := &target.Reap{Active: map[int]int{}, Unwound: map[int]int{}, Whole: true}
	countFreed(p.reclaimable, r)
	if r.Unwound[event] != 1 || r.Active[event] != 0 || r.Whole {
		t.Errorf("%d calls were left, %d in progress, whole: %v; want 1, 0, false", r.Unwound[event], r.Active[event], r.Whole)
	}
}
