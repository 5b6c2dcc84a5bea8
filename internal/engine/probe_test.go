package engine

import (
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// untouched is a target that nothing may be asked of: every method that is called panics.
type untouched struct{ target.Target }

// Space and Capabilities are what Open asks for.
func (untouched) Space() *symbol.Space              { return nil }
func (untouched) Capabilities() target.Capabilities { return target.Capabilities{} }

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
