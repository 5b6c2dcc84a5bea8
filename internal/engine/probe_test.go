package engine

import (
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/instances"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// untouched is a target that nothing may be asked of: every method that is called panics.
type untouched struct{ target.Target }

// Space and Capabilities are what Open asks for.
func (untouched) Space() *symbol.Space { return nil }

func (untouched) Capabilities() target.Capabilities {
	return target.Capabilities{Reaper: struct{ target.Reaper }{}}
}

// TestCloseForgetsPools: what is to be reclaimed yet is forgotten when the Core is closed, since the target unmaps its
// pools then.
func TestCloseForgetsPools(t *testing.T) {
	c, err := Open(untouched{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.reclaimer.End(&instances.Probe{ID: 1, Pool: &arch.Pool{Base: 1 << 46, Slots: 8, Stride: 6}})
	if !c.reclaimer.Waiting() {
		t.Error("there is nothing to reclaim")
	}
	c.closeProbes(nil, false)
	if c.reclaimer.Waiting() {
		t.Error("instances are still to be reclaimed")
	}
}
