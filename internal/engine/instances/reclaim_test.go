package instances_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/instances"
	"kprobes.dev/kprobes/internal/target"
)

func counts(t *testing.T, p *instances.Probe, active, unwound uint64) {
	t.Helper()
	if a, u := p.Counts(); a != active || u != unwound {
		t.Errorf("probe %d: %d active, %d unwound; want %d and %d", p.ID, a, u, active, unwound)
	}
}

// test runs f in a world whose clock stands still but for those who sleep.
func test(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		f(t, newWorld(fake, fake))
	})
}

// What a probe that has ended has left is reclaimed once, its pool and its number are given back once.
func TestEnded(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		p, changed := probe(3), 0
		p.Changed = func() { changed++ }
		w.running[3], w.left[3], w.running[4] = 2, 1, 5
		w.registered = []*instances.Probe{probe(4)}
		w.End(p)
		w.numbers.Hold(3)
		if _, ok := w.numbers.Take(); ok || !w.Waiting() || p.Clear() {
			t.Error("what the probe has left is gone before it was reclaimed")
		}
		w.tend(time.Minute)
		counts(t, p, 2, 1)
		counts(t, w.registered[0], 0, 0)
		if w.Waiting() || !p.Clear() || changed != 1 || !slices.Equal(w.pools, []*arch.Pool{p.Pool}) {
			t.Errorf("waiting %v, clear %v, %d changes told of, pools %v", w.Waiting(), p.Clear(), changed, w.pools)
		}
		if r := w.reaps[0]; !reflect.DeepEqual(r.Ended, map[int]bool{3: true}) || !slices.Equal(r.Live, []int{4}) {
			t.Errorf("the first look was %+v", r)
		}
		if id, ok := w.numbers.Take(); id != 3 || !ok {
			t.Errorf("number %d, %v", id, ok)
		}
	})
}

// A look that does not reclaim all keeps what is left, and nothing is counted twice.
func TestNotWhole(t *testing.T) {
	for _, why := range []error{nil, errors.New("no stop")} {
		test(t, func(t *testing.T, w *world) {
			p := probe(3)
			w.running[3], w.busy, w.err = 2, why == nil, why
			w.End(p)
			w.numbers.Hold(3)
			w.tend(5 * time.Second)
			if !w.Waiting() || p.Clear() || len(w.pools) > 0 {
				t.Errorf("waiting %v, clear %v, pools %v", w.Waiting(), p.Clear(), w.pools)
			}
			w.busy, w.err = false, nil
			w.tend(20 * time.Second)
			counts(t, p, 2, 0)
			if w.Waiting() || !p.Clear() || len(w.pools) != 1 {
				t.Errorf("waiting %v, clear %v, pools %v", w.Waiting(), p.Clear(), w.pools)
			}
			if id, ok := w.numbers.Take(); id != 3 || !ok {
				t.Errorf("number %d, %v", id, ok)
			}
		})
	}
}

// In the stop that takes the code out the calls in progress are forgotten, of the probes that go only.
func TestInStop(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		goes, stays, never := probe(3), probe(4), probe(5)
		never.MarkClear()
		w.registered = []*instances.Probe{goes, stays}
		w.running[3], w.running[4], w.left[4] = 2, 2, 2
		then := w.InStop([]*instances.Probe{goes, never})
		if len(w.reaps) > 0 {
			t.Fatal("the target was looked at before the stop")
		}
		if err := then(); err != nil {
			t.Fatal(err)
		}
		counts(t, goes, 2, 0)
		counts(t, stays, 0, 0)
		if r := w.reaps[0]; r.Left || !reflect.DeepEqual(r.Ended, map[int]bool{3: true}) || !slices.Equal(r.Live, []int{3, 4}) {
			t.Errorf("the look was %+v", r)
		}
		w.End(goes)
		if w.Waiting() || len(w.pools) != 1 {
			t.Error("a probe without instances is waited for")
		}
		if w.InStop([]*instances.Probe{goes, never, nil}) != nil {
			t.Error("there is something to do where no probe has instances")
		}
	})
}

// Where nothing can be done in the stop, or at all, nothing is done.
func TestUnable(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		w.own = true
		if newWorld(w.fake, w.fake).InStop([]*instances.Probe{probe(3)}) != nil {
			t.Error("the own process is stopped for it")
		}
	})
	test(t, func(t *testing.T, able *world) {
		w := newWorld(bare{able.fake}, able.fake)
		p := probe(3)
		w.registered = []*instances.Probe{p}
		w.running[3], w.crowded = 1, true
		if w.InStop([]*instances.Probe{p}) != nil || w.Taken(p) != 0 {
			t.Error("a target without a Reaper is asked")
		}
		w.Rearm([]*instances.Probe{p})
		if w.End(p); w.Waiting() {
			t.Error("what can not be reclaimed is waited for")
		}
		w.tend(time.Minute)
		if len(w.reaps)+w.tallies > 0 {
			t.Error("a target without a Reaper is looked at")
		}
	})
}

// Counting takes a tenth of the time at most, and what was reclaimed is not counted any more.
func TestTaken(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		p := probe(3)
		w.took, w.running[3] = 7*time.Millisecond, 2
		start := time.Now()
		for time.Since(start) < time.Second {
			if n := w.Taken(p); n != 2 {
				t.Fatalf("%d taken", n)
			}
			time.Sleep(time.Millisecond)
		}
		if busy := time.Duration(w.tallies) * w.took; busy > time.Since(start)/10+w.took || w.tallies < 10 {
			t.Errorf("%d times counted: %v in %v", w.tallies, busy, time.Since(start))
		}
		_ = w.InStop([]*instances.Probe{p})()
		if n := w.Taken(p); n != 0 {
			t.Errorf("%d taken, all were reclaimed", n)
		}
		if w.Taken(nil) != 0 {
			t.Error("no return probe has instances")
		}
		w.err, w.running[3] = errors.New("gone"), 1
		if time.Sleep(time.Second); w.Taken(p) != 0 {
			t.Error("what could not be counted is told")
		}
	})
}

// Probes that are armed again do not know the calls that were in progress: all of these count as in progress.
func TestRearm(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(w *world, p *instances.Probe)
		looks int
		wait  time.Duration
		left  int // instances that stay
	}{
		{name: "no instance", do: func(w *world, p *instances.Probe) { delete(w.running, 3); delete(w.left, 3) }, looks: 1},
		{name: "calls in progress", do: func(*world, *instances.Probe) {}, looks: 1},
		{name: "none since it was taken out", do: func(w *world, p *instances.Probe) { p.MarkClear(); clear(w.running); clear(w.left) }},
		{name: "none, but nobody would refuse another", do: func(_ *world, p *instances.Probe) { p.MarkClear(); p.NoEntryHandler = true }, looks: 1},
		{name: "a thread stays", do: func(w *world, _ *instances.Probe) { w.busy = true }, looks: 1001, wait: time.Second, left: 3},
		{name: "the target has gone", do: func(w *world, _ *instances.Probe) { w.err = target.ErrGone }, looks: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			test(t, func(t *testing.T, w *world) {
				p := probe(3)
				w.registered = []*instances.Probe{p}
				w.running[3], w.left[3] = 2, 1
				c.do(w, p)
				had := w.running[3] + w.left[3]
				w.Rearm([]*instances.Probe{p})
				if took := time.Since(w.start); len(w.reaps) != c.looks || took != c.wait {
					t.Errorf("%d looks in %v, want %d in %v", len(w.reaps), took, c.looks, c.wait)
				}
				counts(t, p, uint64(had-c.left), 0)
				if p.Clear() {
					t.Error("a probe that is armed may have instances")
				}
			})
		})
	}
}

// A stop that fails is tried again at least ten times, however long it takes.
func TestRearmSlow(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		w.err = errors.New("no stop")
		slow := &slowReaper{w.fake}
		w = newWorld(slow, w.fake)
		w.Rearm([]*instances.Probe{probe(3)})
		if len(w.reaps) != 10 {
			t.Errorf("%d looks", len(w.reaps))
		}
	})
}

// slowReaper takes a second for each stop.
type slowReaper struct{ *fake }

func (s *slowReaper) Capabilities() target.Capabilities { return target.Capabilities{Reaper: s} }

func (s *slowReaper) Reap(r *target.Reap) error {
	time.Sleep(time.Second)
	return s.fake.Reap(r)
}

// Where numbers are short, those are free that no instance has any more: the target is asked.
func TestVacate(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		has, none := probe(3), probe(4)
		w.running[3] = 1
		for _, p := range []*instances.Probe{has, none} {
			w.End(p)
			w.numbers.Hold(p.ID)
		}
		w.numbers.Free(7)
		if w.Vacate(); w.asked > 0 {
			t.Error("asked though a number is free")
		}
		_, _ = w.numbers.Take()
		w.err = errors.New("no stop")
		if w.Vacate(); len(w.pools) > 0 {
			t.Error("pools are given back without an answer")
		}
		w.err = nil
		w.Vacate()
		if id, ok := w.numbers.Take(); id != 4 || !ok || !slices.Equal(w.pools, []*arch.Pool{none.Pool}) || !w.Waiting() {
			t.Errorf("number %d, %v; pools %v", id, ok, w.pools)
		}
		if id, ok := w.numbers.Take(); ok {
			t.Errorf("number %d, of which there is an instance", id)
		}
		clear(w.running)
		w.tend(2 * time.Second)
		if id, ok := w.numbers.Take(); id != 3 || !ok || len(w.pools) != 2 {
			t.Errorf("number %d, %v; pools %v", id, ok, w.pools)
		}
	})
}

// A stop that fails in the middle has reclaimed something, and that counts.
func TestReapError(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		live, ended := probe(3), probe(4)
		w.registered = []*instances.Probe{live}
		w.left[3], w.running[4] = 2, 1
		w.crowded, w.err = true, errors.New("the thread has gone")
		w.End(ended)
		w.Reclaim()
		counts(t, live, 0, 2)
		counts(t, ended, 1, 0)
		if ended.Clear() || !w.Waiting() {
			t.Error("a look that has failed was taken for whole")
		}
	})
}

// At the end the target says what the instances are that are left. What was to be reclaimed goes with the target.
func TestClose(t *testing.T) {
	test(t, func(t *testing.T, w *world) {
		p := probe(3)
		w.running[3], w.left[3] = 2, 1
		_ = w.InStop([]*instances.Probe{p})()
		w.running[3], w.left[3] = 4, 5
		if err := w.Classify([]*instances.Probe{p}); err != nil {
			t.Error(err)
		}
		counts(t, p, 6, 6)
		w.End(probe(4))
		w.Close()
		if w.Waiting() || len(w.pools) > 0 {
			t.Errorf("waiting %v, pools %v", w.Waiting(), w.pools)
		}
		var none *instances.Probe
		if none.MarkClear(); !none.Clear() {
			t.Error("what is no return probe has instances")
		}
		counts(t, &instances.Probe{}, 0, 0)
		if a, u := none.Counts(); a+u > 0 {
			t.Error("what is no return probe has counts")
		}
	})
}
