package symbol

import (
	"runtime"
	"testing"
	"time"
)

// TestKept: a value is made once while it is used, whatever is collected meanwhile, and goes when nobody asks for it.
func TestKept(t *testing.T) {
	var k Kept[[1 << 16]byte]
	made := 0
	get := func() {
		if _, err := k.Get(func() (*[1 << 16]byte, error) { made++; return new([1 << 16]byte), nil }); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		get()
		runtime.GC()
		runtime.GC()
		runtime.GC()
	}
	if made != 1 {
		t.Errorf("made %d times", made)
	}
	gone := func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.used = time.Time{} // long ago
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
