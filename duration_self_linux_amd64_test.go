//go:build !race

package kprobes_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// monotonic is CLOCK_MONOTONIC in nanoseconds.
func monotonic() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint64(t.Nano())
}

// timedInside is what timed has taken by its own clock, by its number.
var timedInside [4 * 300]uint64

//go:noinline
func timed(id int) int {
	t := monotonic()
	switch {
	case id%40 == 3:
		time.Sleep(time.Millisecond) // the goroutine may go on in another thread
	case id%5 == 2:
		runtime.Gosched()
	default:
		for end := t + uint64(1)<<(id%16); monotonic() < end; {
		}
	}
	timedInside[id] = monotonic() - t
	return id
}

// TestSelfDuration compares the duration of goroutines' calls with the clock inside of them and around.
func TestSelfDuration(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	d, err := event.Parse("r:timed " + selfPrefix + "timed id=$arg1:u64 ns=$duration")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := core.Add([]*event.Def{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	around := make([]uint64, len(timedInside))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 300 {
				id, t0 := 300*g+i, monotonic()
				if timed(id) != id {
					t.Error("a wrong result")
				}
				around[id] = monotonic() - t0
			}
		})
	}
	wg.Wait()
	seen := map[uint64]bool{}
	if err := core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	for len(seen) < len(around) {
		core.Poll(func(h *kprobes.Hit) {
			vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "")
			if err != nil || len(vs) != 2 || vs[0].Num >= uint64(len(around)) || seen[vs[0].Num] {
				t.Fatalf("%v %v", vs, err)
			}
			id, ns := vs[0].Num, vs[1].Num
			seen[id] = true
			slack := ns/500 + 200 // the engine's clock is measured against the kernel's
			if ns+slack < timedInside[id] || ns > around[id]+slack {
				t.Errorf("call %d: %d ns, by the clock %d to %d", id, ns, timedInside[id], around[id])
			}
		})
	}
	if n := core.Counts(evs[0]); n.Hits != uint64(len(around)) || n.Lost+n.Missed != 0 {
		t.Fatalf("%+v", n)
	}
}
