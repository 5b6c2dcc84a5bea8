package handover_test

import (
	"runtime"
	"sync"
	"testing"

	"kprobes.dev/kprobes/samples/handover"
)

// What does not fit is dropped, the newest, and counted; the rest comes in order, lap after
// lap.
func TestBufferFull(t *testing.T) {
	b := handover.New[int](4)
	if _, ok := b.Get(); ok {
		t.Error("a value from an empty buffer")
	}
	for lap := range 3 {
		for i := range 6 {
			b.Put(10*lap + i)
		}
		for i := range 4 {
			if v, ok := b.Get(); !ok || v != 10*lap+i {
				t.Errorf("lap %d: value %d is %d, %v", lap, i, v, ok)
			}
		}
		if v, ok := b.Get(); ok {
			t.Errorf("lap %d: %d was not dropped", lap, v)
		}
	}
	if n := b.Dropped(); n != 6 {
		t.Errorf("%d dropped, want 6", n)
	}
}

// Many writers at once: every value is read once or dropped, and those of one writer come in
// their order.
func TestBufferWriters(t *testing.T) {
	const writers, each = 8, 2000
	b := handover.New[[2]int](16)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				b.Put([2]int{w, i + 1})
			}
		})
	}
	done := make(chan bool)
	go func() { wg.Wait(); close(done) }()
	var last [writers]int
	read := uint64(0)
	take := func() bool {
		v, ok := b.Get()
		if !ok {
			return false
		}
		read++
		if v[1] <= last[v[0]] {
			t.Errorf("writer %d: %d after %d", v[0], v[1], last[v[0]])
		}
		last[v[0]] = v[1]
		return true
	}
	for writing := true; writing; {
		select {
		case <-done:
			writing = false
		default:
			if !take() {
				runtime.Gosched()
			}
		}
	}
	for take() {
	}
	if sum := read + b.Dropped(); sum != writers*each || read == 0 {
		t.Errorf("%d read and %d dropped, want %d in all", read, b.Dropped(), writers*each)
	}
}
