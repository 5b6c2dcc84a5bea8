package records

import (
	"slices"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// Views are found by their numbers; numbers that a damaged ring may hold find none.
func TestViews(t *testing.T) {
	var v viewTable
	for _, id := range []int{-1, 0, viewPage - 1, viewPage, ring.MaxEvents - 1, ring.MaxEvents} {
		if v.get(id) != nil {
			t.Errorf("a view of %d, and none was shown", id)
		}
	}
	a, b := &View{}, &View{Unknown: true}
	v.set(0, a)
	v.set(ring.MaxEvents-1, b)
	if v.get(0) != a || v.get(ring.MaxEvents-1) != b || v.get(1) != nil || v.get(ring.MaxEvents) != nil {
		t.Error("other views than were shown")
	}
	if v.set(0, b); v.get(0) != b {
		t.Error("a view that was shown later is not found")
	}
}

// synced counts how often a clock is synchronised.
type synced struct {
	ticks
	n int
}

func (s *synced) sync() error { s.n++; return nil }

// closed is a target with nothing to read.
type closed struct{ target.Target }

func (closed) Uprobes(func(*target.UprobeRecord)) int { return 0 }
func (closed) Close() error                           { return nil }

// Who closes without having read has records of hours. Their times are those of a clock that is measured once more: the kernel's
// probes have times of the kernel's clock, and both are to be in order.
func TestCloseSyncs(t *testing.T) {
	var clock synced
	if err := (&Reader{t: closed{}, clock: &clock}).Close(nil); err != nil || clock.n != 1 {
		t.Errorf("the clock is synchronised %d times; %v", clock.n, err)
	}
}

// ticks is a clock whose ticks are nanoseconds.
type ticks struct{}

func (ticks) sync() error                     { return nil }
func (ticks) nanos(tick uint64, _ int) uint64 { return tick }
func (ticks) tick() (uint64, error)           { return 1 << 32, nil }

func hitsAt(nanos ...uint64) (hits []hit.Hit) {
	for _, n := range nanos {
		hits = append(hits, hit.Hit{Nanos: n})
	}
	return hits
}

// Hits that are read early are given out in the order of their times, up to the time up to which the ring's
// records have been, each once.
func TestEarlyHits(t *testing.T) {
	var e earlyHits
	var given []uint64
	take := func(h *hit.Hit) { given = append(given, h.Nanos) }
	now := time.Now()
	e.add(hitsAt(30, 10), now)
	e.add(hitsAt(20, 50), now)
	e.give(e.limit(ticks{}, 0), take) // nothing of the ring can be read yet
	if len(given) > 0 {
		t.Errorf("%v given before the ring's records", given)
	}
	e.give(e.limit(ticks{}, 30), take)
	if !slices.Equal(given, []uint64{10, 20, 30}) || e.taken() != 3 || e.taken() != 0 {
		t.Errorf("%v given up to 30", given)
	}
	e.give(^uint64(0), take)
	if !slices.Equal(given, []uint64{10, 20, 30, 50}) || e.taken() != 1 {
		t.Errorf("%v given in the end", given)
	}
}

// Where the records' clock can not be read here, a hit waits as long as the ring's reader holds records.
func TestEarlyHitsWait(t *testing.T) {
	var e earlyHits
	now := time.Now()
	e.add(hitsAt(10), now.Add(-holdRecords))
	e.add(hitsAt(20), now.Add(time.Hour))
	if got := e.limit(&ownClock{}, 0); got != 10 {
		t.Errorf("hits up to %d, want 10", got)
	}
}
