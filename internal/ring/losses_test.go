package ring

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// told is what Losses tells.
func told(rd *Reader, all bool) (out []string) {
	rd.Losses(all, func(event uint32, cpu int, records uint64) {
		out = append(out, fmt.Sprintf("%d records of event %d on CPU %d", records, event, cpu))
	})
	return out
}

// Losses tells of each loss once, of shards of both kinds, and finds by itself those of a shard that was full.
func TestLosses(t *testing.T) {
	const cpus, data = 2, MinData
	r := newTestRing(t, Config{CPUs: cpus, Events: 4, DataSize: data})
	rd, _ := newTestReader(t, r)
	want := func(all bool, want ...string) {
		t.Helper()
		if got := told(rd, all); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	want(true)
	solo, locked := &soloWriter{ring: r, shard: 0}, &lockedWriter{ring: r, shard: cpus + 1}
	lost := [2]int{}
	for i := range data / 32 * 2 {
		if !solo.write(2, 7, uint64(i), 1, 2) {
			lost[0]++
		}
		if !locked.write(2, 7, uint64(i), 1, 2) {
			lost[1]++
		}
	}
	if lost[0] == 0 || lost[1] == 0 {
		t.Fatalf("%d lost: the test shows nothing", lost)
	}
	want(false) // nobody has looked yet
	var times []uint64
	rd.Poll(collect(t, &times))
	want(false, fmt.Sprintf("%d records of event 2 on CPU 0", lost[0]), fmt.Sprintf("%d records of event 2 on CPU 1", lost[1]))

	// A writer that found the shard full counts it behind the look.
	counter := r.CounterOff(2) + CtrLost
	poke(r, 0, counter, peek(r, 0, counter)+1)
	want(false, "1 records of event 2 on CPU 0")
	want(true)
	poke(r, 0, counter, peek(r, 0, counter)+3)
	poke(r, 0, r.CounterOff(3)+CtrLost, 1) // of an event that has no records
	for _, s := range rd.shards {
		s.crowded = time.Time{} // much later
	}
	want(false)
	want(true, "3 records of event 2 on CPU 0")
	poke(r, 0, counter, 0) // what a target scribbles is no loss
	want(true)
	poke(r, 0, counter, 7)
	rd.Forget(2) // its number is used again
	want(true, "7 records of event 2 on CPU 0", fmt.Sprintf("%d records of event 2 on CPU 1", lost[1]))
}

// A shard that fills while the reader copies from it is looked at.
func TestLossesWhileCopying(t *testing.T) {
	for _, shard := range []int{0, 1} {
		r := newTestRing(t, Config{CPUs: 1, Events: 4, DataSize: MinData})
		write := (&soloWriter{ring: r, shard: 0}).write
		if r.IsLocked(shard) {
			write = (&lockedWriter{ring: r, shard: shard}).write
		}
		var fill func()
		rd := NewReader(r, &ReaderConfig{Margin: 1, Now: func() uint64 {
			if fill != nil {
				fill()
				fill = nil
			}
			return 1000
		}})
		allow(t, rd, 2, 32, 32)
		half := MinData / 32 / 2
		for range half {
			write(2, 7, 2000, 1, 2) // of the future: the reader looks at its clock while it copies
		}
		lost := 0
		rd.Now()
		fill = func() {
			for range MinData / 32 {
				if !write(2, 7, 2000, 1, 2) {
					lost++
				}
			}
		}
		rd.shards[shard].pull(1000)
		if got, want := told(rd, false), fmt.Sprintf("%d records of event 2 on CPU 0", lost); lost == 0 || len(got) != 1 || got[0] != want {
			t.Errorf("shard %d: %q, want %q", shard, got, want)
		}
	}
}
