package self

import (
	"testing"
	"unsafe"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// A goroutine that does not move, of which only the stack is there.
var fakeStack, fakeG [64]uint64

// TestPreemptedFrames: wherever in the runtime's preemption a goroutine is, the instruction
// that was preempted is found: it blocks a change of the bytes around it.
func TestPreemptedFrames(t *testing.T) {
	const (
		at     = 0x1003 // the instruction
		async  = 0x2000
		async2 = 0x3000
		detour = 0x7000
		callee = 0x4000
	)
	// The stack from word 8 up: the frame of a callee of asyncPreempt2, that of asyncPreempt2,
	// that of asyncPreempt, and the frame pointer of the function that was preempted.
	stack := &fakeStack
	addr := func(i int) uint64 { return uint64(uintptr(unsafe.Pointer(&stack[i]))) }
	stack[8], stack[9] = addr(16), async2+8
	stack[16], stack[17] = addr(24), async+8
	stack[24], stack[25] = addr(40), at
	stack[40], stack[41] = 0, 0x5000
	g := &fakeG
	lay, err := findLayout()
	if err != nil {
		t.Fatal(err)
	}
	g[lay.StackLo/8], g[lay.StackHi/8] = addr(0), addr(len(stack)-1)
	add := siteAt(at-3, 5, detour, []uint64{at - 3, at}, at+4)
	for _, c := range []struct {
		name       string
		pc, sp, bp uint64
		blocks     bool
	}{
		{"asyncPreempt begins", async, addr(25), addr(40), true},
		{"asyncPreempt has saved the frame pointer", async + 1, addr(24), addr(40), true},
		{"asyncPreempt", async + 4, addr(20), addr(24), true},
		{"asyncPreempt2 begins", async2, addr(19), addr(24), true},
		{"the detour of a probe of asyncPreempt2", detour, addr(19), addr(24), true},
		{"asyncPreempt2", async2 + 8, addr(12), addr(16), true},
		{"a callee of asyncPreempt2", callee, addr(4), addr(8), true},
		{"something else", 0x5000, addr(30), addr(40), false},
		{"no frame pointer", 0x5000, addr(30), 7, false},
	} {
		p := &plan{lay: lay, places: &places{async: interval.Range{Start: async, End: async + 0x100}, async2: interval.Range{Start: async2, End: async2 + 0x100}}}
		p.threads, p.retired = patch.NewThreads([]*target.Site{add}, nil, nil, patch.Policy{}), patch.NewRetired(nil)
		p.preempted(1, uint64(uintptr(unsafe.Pointer(g))), c.pc, c.sp, c.bp)
		if got := p.verdict == blockedBy; got != c.blocks || got && p.at != at {
			t.Errorf("%s: blocks: %v at 0x%x", c.name, got, p.at)
		}
	}
}
