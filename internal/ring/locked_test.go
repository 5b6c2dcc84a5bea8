package ring

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNestedHandler interrupts a writer after every step with a handler that writes too.
func TestNestedHandler(t *testing.T) {
	for _, step := range []string{"reserved", "filled", "committed"} {
		t.Run(step, func(t *testing.T) {
			r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
			rd, _ := newTestReader(t, r)
			var got []uint64
			during := -1
			w := &lockedWriter{ring: r, shard: 1, at: func(s string) {
				if s == step {
					writerOf(r, 1).write(1, 1, 20)
					rd.Poll(collect(t, &got))
					during = len(got)
				}
			}}
			w.write(1, 1, 10)
			rd.Poll(collect(t, &got))
			if d := cmp.Diff([]uint64{10, 20}, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if want := map[bool]int{true: 2, false: 0}[step == "committed"]; during != want {
				t.Errorf("%d records seen at the step, want %d", during, want)
			}
			if len(rd.Stalls()) != 0 || rd.Stats().Corrupt != 0 {
				t.Errorf("stalls %+v, stats %+v", rd.Stalls(), rd.Stats())
			}
		})
	}
}

// abandon reserves and never commits, filling all words but the first.
func abandon(r *Ring, shard int, args ...uint64) {
	defer func() { _ = recover() }()
	w := &lockedWriter{ring: r, shard: shard, at: func(s string) {
		if s == "filled" {
			panic("killed")
		}
	}}
	w.write(1, 1, 1, args...)
}

// TestReap leaves holes at every place round the end of the data.
func TestReap(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
	rd, _ := newTestReader(t, r)
	total := uint64(0)
	for round := range uint64(600) {
		writerOf(r, 1).write(1, 1, 1)
		abandon(r, 1, 1, 2, 3, 4, 5)
		for range round % 40 {
			writerOf(r, 1).write(1, 1, 2, 7, 7, 7)
		}
		mark := rd.Mark()
		writerOf(r, 1).write(1, 1, 3, 8, 8) // after the mark: must survive
		var got []uint64
		rd.Poll(collect(t, &got))
		if s := rd.Stalls(); len(s) != 1 || s[0].Corrupt || s[0].Shard != 1 {
			t.Fatalf("round %d: stalls %+v", round, s)
		}
		if lost := rd.Reap(mark); lost != 1+round%40 {
			t.Fatalf("round %d: %d reaped, want %d", round, lost, 1+round%40)
		}
		total += 1 + round%40
		rd.Poll(collect(t, &got))
		if d := cmp.Diff([]uint64{1, 3}, got); d != "" {
			t.Fatalf("round %d (-want +got):\n%s", round, d)
		}
		checkZero(t, r, 1)
	}
	if st := rd.Stats(); st.Dead != total || st.Corrupt != 0 {
		t.Errorf("stats %+v, want %d dead", st, total)
	}
}

// TestReapFull reaps a shard with as many reservations as there can be: the count has
// come round to 0.
func TestReapFull(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: 2 << 20})
	rd, _ := newTestReader(t, r)
	abandon(r, 1)
	n := uint64(1)
	for writerOf(r, 1).write(1, 1, 1) {
		n++
	}
	if n != 1<<16 {
		t.Fatalf("the shard holds %d records of two words, want 65536", n)
	}
	rd.Poll(func(Record) { t.Error("a record before the hole") })
	if lost := rd.Reap(rd.Mark()); lost != n {
		t.Errorf("%d reaped, want %d", lost, n)
	}
	checkZero(t, r, 1)
}

// TestReapNothing does not touch shards that work, or holes that were filled meanwhile.
func TestReapNothing(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 2, Events: 8, DataSize: MinData})
	rd, _ := newTestReader(t, r)
	old := rd.Mark()
	w := &lockedWriter{ring: r, shard: 3, at: func(s string) {
		if s == "reserved" {
			rd.Poll(func(Record) {})
			if lost := rd.Reap(old); lost != 0 {
				t.Errorf("%d reaped by a mark from before the reservation", lost)
			}
		}
	}}
	w.write(1, 1, 5)
	var got []uint64
	if lost := rd.Reap(rd.Mark()); lost != 0 {
		t.Errorf("%d reaped though all is committed", lost)
	}
	rd.Drain(collect(t, &got))
	if d := cmp.Diff([]uint64{5}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if lost := rd.Reap(Mark{}); lost != 0 {
		t.Errorf("%d reaped by no mark", lost)
	}
}

// TestPositionComesRound starts a shard just before its position has used all 48 bits.
func TestPositionComesRound(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
	const start = 0xfffe<<posBits | posMask - 99
	poke(r, 1, ShHead, start)
	poke(r, 1, ShRead, start)
	rd, _ := newTestReader(t, r)
	for i := range uint64(1000) {
		if !writerOf(r, 1).write(2, 1, i, i, i) {
			t.Fatalf("record %d: full, head %#x", i, peek(r, 1, ShHead))
		}
		if i == 24 {
			abandon(r, 1)
			writerOf(r, 1).write(2, 1, i, i, i)
			rd.Drain(func(Record) {})
			if lost := rd.Reap(rd.Mark()); rd.Stats().Read != 25 || lost != 2 {
				t.Errorf("stats %+v, %d reaped over the turn, want 25 read and 2 reaped", rd.Stats(), lost)
			}
		}
		rd.Poll(func(Record) {})
	}
	rd.Drain(func(Record) {})
	if tally := rd.Tally(2); tally.Read != 1000 || tally.Lost != 0 || rd.Stats().Corrupt != 0 {
		t.Errorf("tally %+v, stats %+v, %v", tally, rd.Stats(), rd.Corruption())
	}
	checkZero(t, r, 1)
}
