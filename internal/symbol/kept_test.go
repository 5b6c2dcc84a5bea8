package symbol

import (
	"runtime"
	"testing"
)

// TestKept: a value is made once while it is used, also between collections, and goes when nobody asks for it.
func TestKept(t *testing.T) {
	var k Kept[[1 << 16]byte]
	made := 0
	get := func() {
		if _, err := k.Get(func() (*[1 << 16]byte, error) { made++; return new([1 << 16]byte), nil }); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		get()
	}
	if made != 1 {
		t.Errorf("made %d times", made)
	}
	gone := func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.v == nil
	}
	for !gone() { // finalizers run some time after a collection
		runtime.GC()
	}
	get()
	if made != 2 {
		t.Errorf("made %d times once it had gone", made)
	}
}
