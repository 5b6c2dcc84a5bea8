package amd64

import "testing"

// TestBelowStack: what a leaf function keeps in its red zone is found; the making of a frame is not.
func TestBelowStack(t *testing.T) {
	a := NewAsm(0x1000)
	a.Lea(RSP, At(RSP, -64)) // a frame
	a.MovMR(8, At(RSP, 8), RAX)
	a.MovMR(8, At(RBP, -8), RAX)
	a.MovMR(8, AtIndex(R12, RAX, 1, -8), RCX)
	a.MovMR(8, AtIndex(RSP, RAX, 8, -8), RCX)
	none := a.Len()
	a.MovMR(4, At(RSP, -4), RAX)
	a.Ret()
	code, err := a.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if at, is := BelowStack(code); !is || at != none {
		t.Errorf("found at %#x, %v; want %#x", at, is, none)
	}
	if at, is := BelowStack(code[:none]); is {
		t.Errorf("found at %#x", at)
	}
}
