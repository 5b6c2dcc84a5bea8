package engine

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// untouched is a target that nothing may be asked of: every method that is called panics.
type untouched struct{ target.Target }

// Space and Capabilities are what Open asks for.
func (untouched) Space() *symbol.Space              { return nil }
func (untouched) Capabilities() target.Capabilities { return target.Capabilities{} }

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
	p := &Probe{core: &Core{}, frames: make([]frame, 4), h: Handlers{NewCall: func(c *Call) { c.Owner = owner }}}
	var regs [4]Regs
	seen := map[*frame]bool{}
	for i := range regs {
		seen[p.claim(&regs[i])] = true
	}
	var more Regs
	f := p.claim(&more)
	if len(seen) != 4 || seen[f] || f.call.Owner != owner {
		t.Errorf("%d frames for 4 runs, and a fifth run got one of them: %v", len(seen), seen[f])
	}
	if p.faulted(&regs[2], 14, target.Why("")) || !p.off.Load() || p.core.faults.Load() != 1 {
		t.Error("a fault without handler does not switch the probe off")
	}
	if f := p.claim(&more); !seen[f] {
		t.Error("the frame of an abandoned run was not given back")
	}
	p.h.Fault = func(*Regs, int) int { return 1 }
	if !p.faulted(&more, 14, target.Why("")) {
		t.Error("a fault handler's 1 is not what counts")
	}
}

// TestCloseForgetsPools: what keep would give back to a pool is forgotten when the Core is
// closed, since the target unmaps its pools then.
func TestCloseForgetsPools(t *testing.T) {
	c, err := Open(untouched{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.reaping.left = []leftover{{e: &Event{ID: 1}, pool: &arch.Pool{Base: 1 << 46, Slots: 8, Stride: 6}}}
	c.closeProbes(nil, false)
	if len(c.reaping.left) > 0 {
		t.Errorf("%d pools are still to be swept", len(c.reaping.left))
	}
}
