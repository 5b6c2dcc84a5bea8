package amd64

import "testing"

// TestGoInt: the registers are those of goWords, in this order.
func TestGoInt(t *testing.T) {
	var r Regs
	for n, reg := range goWords {
		if GoInt(&r, n) != r.general()[reg] {
			t.Errorf("word %d is not in register %d", n, reg)
		}
	}
}
