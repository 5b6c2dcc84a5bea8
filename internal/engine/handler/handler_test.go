package handler

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"kprobes.dev/kprobes/internal/target"
)

// TestFault: the first fault is kept, and its words tell what it was.
func TestFault(t *testing.T) {
	for trap, want := range map[int]string{target.TrapPanic: "panicked: why", 14: "trap 14"} {
		var f fault
		if f.err() != nil {
			t.Error("a fault before any")
		}
		if !f.set(trap, target.Why("why")) || f.set(3, target.Why("later")) {
			t.Error("not the first fault was kept")
		}
		if err := f.err(); !errors.Is(err, unix.EFAULT) || !strings.Contains(err.Error(), want) {
			t.Errorf("trap %d: %v, want EFAULT and %q", trap, err, want)
		}
	}
}

// TestFrames: frames in use are not given away, one more is allocated, and a run that was
// abandoned gives its frame back.
func TestFrames(t *testing.T) {
	owner := unsafe.Pointer(new(int))
	r := &runs{Options: Options{Faults: new(atomic.Uint64)}, frames: make([]frame, 4), Handlers: Handlers{NewCall: func(c *Call) { c.Owner = owner }}}
	var regs [4]Regs
	seen := map[*frame]bool{}
	for i := range regs {
		seen[r.claim(&regs[i])] = true
	}
	var more Regs
	f := r.claim(&more)
	if len(seen) != 4 || seen[f] || f.call.Owner != owner {
		t.Errorf("%d frames for 4 runs, and a fifth run got one of them: %v", len(seen), seen[f])
	}
	if r.faulted(&regs[2], 14, target.Why("")) || !r.off.Load() || r.Faults.Load() != 1 {
		t.Error("a fault without handler does not switch the probe off")
	}
	if f := r.claim(&more); !seen[f] {
		t.Error("the frame of an abandoned run was not given back")
	}
	r.Fault = func(*Regs, int) int { return 1 }
	if !r.faulted(&more, 14, target.Why("")) {
		t.Error("a fault handler's 1 is not what counts")
	}
}
