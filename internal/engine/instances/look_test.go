package instances_test

import (
	"slices"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/engine/instances"
)

// gaps are the times between looks, in tenths of a second, from the first look on.
func (w *world) gaps() (out []int) {
	for i := 1; i < len(w.at); i++ {
		out = append(out, int((w.at[i]-w.at[i-1]).Round(100*time.Millisecond)/(100*time.Millisecond)))
	}
	return out
}

// Looks that find nothing become rarer: each pause is twice the one before.
func TestPauses(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world)
		want []int
	}{
		{"instances are short", func(w *world) { w.crowded = true }, []int{1, 2, 4, 8, 16, 32, 64, 100, 100}},
		{"a thread is in the way", func(w *world) { w.busy = true; w.End(probe(4)); w.running[4] = 1 }, []int{10, 10, 10, 10, 16, 32, 64, 100, 100}},
		{"calls go on", func(w *world) { w.running[3] = 1 }, []int{10, 20, 40, 80, 160, 320, 600, 600}},
		{"no instance is taken", func(*world) {}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			test(t, func(t *testing.T, w *world) {
				w.registered = []*instances.Probe{probe(3)}
				c.do(w)
				w.tend(4 * time.Minute)
				if got := w.gaps(); !slices.Equal(got[:min(len(got), len(c.want))], c.want) || len(c.want) == 0 && len(w.at) > 0 {
					t.Errorf("looks after %d tenths of a second, want %d", got, c.want)
				}
			})
		})
	}
}

// A shortage is seen to at once, unless looks for the same reason have just been in vain.
func TestPausesEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world) // then instances are short
	}{
		{"there was no shortage for a while", func(w *world) {
			w.crowded = true
			w.tend(time.Minute)
			w.crowded = false
			w.tend(20 * time.Second)
		}},
		{"the last look has found something", func(w *world) {
			w.crowded = true
			w.tend(time.Minute)
			for w.left[3] = 1; w.left[3] > 0; {
				w.tend(100 * time.Millisecond)
			}
		}},
		{"the last look was for counting", func(w *world) {
			w.running[3] = 1
			for len(w.reaps) < 5 {
				w.tend(100 * time.Millisecond)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			test(t, func(t *testing.T, w *world) {
				w.registered = []*instances.Probe{probe(3)}
				c.do(w)
				w.at, w.crowded = nil, true
				w.tend(time.Second)
				if got := w.gaps(); !slices.Equal(got, []int{1, 2, 4}) {
					t.Errorf("%d looks, after %d tenths of a second", len(w.at), got)
				}
			})
		})
	}
}

// The reason for a look says whether registered probes lose instances by it: only those that are needed, or to be counted.
func TestReasons(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world)
		left bool
	}{
		{"shortage", func(w *world) { w.crowded = true; w.End(probe(4)) }, true},
		{"counting", func(w *world) { w.running[3] = 1; w.End(probe(4)) }, true},
		{"a probe has ended", func(w *world) { w.End(probe(4)) }, false},
	} {
		test(t, func(t *testing.T, w *world) {
			w.registered = []*instances.Probe{probe(3)}
			c.do(w)
			w.Reclaim()
			if len(w.reaps) != 1 || w.reaps[0].Left != c.left || !w.reaps[0].Ended[4] {
				t.Errorf("%s: looks %+v", c.name, w.reaps)
			}
		})
	}
}

// Calls that were left are found though nobody needs their instances, and looks are frequent again after that.
func TestLeft(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		p := probe(3)
		w.registered = []*instances.Probe{p}
		w.running[3] = 1
		w.tend(10 * time.Minute)
		w.left[3] = 2
		for start := time.Now(); w.left[3] > 0 && time.Since(start) < 61*time.Second; {
			w.tend(100 * time.Millisecond)
		}
		counts(t, p, 0, 2)
		if n := w.Taken(p); n != 1 {
			t.Errorf("%d instances are taken", n)
		}
		n := len(w.reaps)
		w.tend(4 * time.Second)
		if len(w.reaps) == n {
			t.Error("looks have stayed rare")
		}
		if r := w.reaps[0]; !r.Left || len(r.Ended) > 0 {
			t.Errorf("the look was %+v", r)
		}
	})
}

// Entries that are missed have the target looked at, also those of the last of many probes, once for each time.
func TestMissing(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		const events = 1000
		w.withRing(t, events)
		for id := range events {
			w.registered = append(w.registered, probe(id))
		}
		w.tend(time.Second)
		if len(w.reaps) > 0 {
			t.Fatal("looked without need")
		}
		w.miss(events-1, 3)
		w.tend(time.Second)
		if len(w.reaps) != 1 || !w.reaps[0].Left {
			t.Errorf("%d looks", len(w.reaps))
		}
	})
}
