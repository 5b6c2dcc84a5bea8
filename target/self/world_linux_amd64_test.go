package self

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestParkedTwice: a thread that parks in the moment in which a stop is given up counts itself
// in the next one. The one that has not parked yet is waited for all the same.
func TestParkedTwice(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := int32(unix.Gettid()) // a thread that has not ended
	w := &worldState{asked: 2, parked: 2}
	w.slots[0] = slot{tid: tid + 1, state: 7<<2 | slotParked}
	w.slots[1] = slot{tid: tid, state: 7<<2 | slotAsked}
	w.list[0], w.list[1] = 0, 1
	if late := w.wait(0); late != tid {
		t.Errorf("the stop is said to be complete: thread %d is late, not %d", late, tid)
	}
	w.parked++
	w.slots[1].state = 7<<2 | slotParked
	if late := w.wait(0); late != 0 {
		t.Errorf("all have parked, thread %d is late", late)
	}
}
