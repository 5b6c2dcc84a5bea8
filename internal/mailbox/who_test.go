package mailbox

import (
	"sync"
	"testing"
)

// TestGoid: every goroutine has a number of its own, and keeps it.
func TestGoid(t *testing.T) {
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			n := GoID()
			mu.Lock()
			defer mu.Unlock()
			if n == 0 || n != GoID() || seen[n] {
				t.Errorf("goroutine %d", n)
			}
			seen[n] = true
		})
	}
	wg.Wait()
	if Running() != nil {
		t.Error("a test is taken for a handler")
	}
}
