package hitlog

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestWallClock: what runs between two readings of the clocks does not count.
func TestWallClock(t *testing.T) {
	var busy sync.WaitGroup
	var stop atomic.Bool
	for range 2 * runtime.NumCPU() {
		busy.Go(func() {
			runtime.LockOSThread() // the kernel takes turns, not the runtime
			defer runtime.UnlockOSThread()
			for !stop.Load() {
			}
		})
	}
	defer busy.Wait()
	defer stop.Store(true)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var first wallClock
	first.measure()
	for range 500_000 {
		var c wallClock
		c.measure()
		if d := time.Duration(c.offset - first.offset).Abs(); d > time.Millisecond {
			t.Fatalf("the wall clock is %v away from the last measurement", d)
		}
	}
	if got, now := first.at(uint64(monotonic())), time.Now(); now.Sub(got).Abs() > time.Minute {
		t.Errorf("%v, it is %v", got, now)
	}
}
