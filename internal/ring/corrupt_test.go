package ring

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCorruptRseq overwrites an rseq shard behind 3 records that were read, and looks
// whether the next 3 after the damage arrive.
func TestCorruptRseq(t *testing.T) {
	const rec = 4 // units
	for _, c := range []struct {
		name   string
		damage func(r *Ring)
		reason string
	}{
		{"head back", func(r *Ring) { poke(r, 0, ShHead, rec) }, "head"},
		{"head zero", func(r *Ring) { poke(r, 0, ShHead, 0) }, "head"},
		{"head far ahead", func(r *Ring) { poke(r, 0, ShHead, 1<<63) }, "head"},
		{"head just too far", func(r *Ring) { poke(r, 0, ShHead, 3*rec+MinData/8+1) }, "head"},
		{"head ahead", func(r *Ring) { poke(r, 0, ShHead, 3*rec+7) }, "event that is not in use"},
		{"size 0", func(r *Ring) { bad(r, 2<<EventShift) }, "size"},
		{"size 1", func(r *Ring) { bad(r, 1|2<<EventShift) }, "size"},
		{"size of another event", func(r *Ring) { bad(r, 5|2<<EventShift) }, "size"},
		{"largest size", func(r *Ring) { bad(r, 0xfff|2<<EventShift) }, "size"},
		{"over the head", func(r *Ring) { bad(r, 8|1<<EventShift) }, "ends behind the head"},
		{"event not in use", func(r *Ring) { bad(r, 4|7<<EventShift) }, "not in use"},
		{"event beyond the table", func(r *Ring) { bad(r, 4|8<<EventShift) }, "beyond the table"},
		{"all ones", func(r *Ring) { bad(r, ^uint64(0)) }, "beyond the table"},
		{"tail ahead", func(r *Ring) { poke(r, 0, ShTail, 1<<40) }, "tail"},
		{"tail back", func(r *Ring) { poke(r, 0, ShTail, 0) }, "tail"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
			rd, _ := newTestReader(t, r)
			w := writerOf(r, 0)
			var got []uint64
			for i := range uint64(3) {
				w.write(2, 1, i, 0, 0)
			}
			rd.Drain(collect(t, &got))
			c.damage(r)
			rd.Drain(collect(t, &got))
			if st := rd.Stats(); st.Corrupt != 1 || !strings.Contains(rd.Corruption().Error(), c.reason) {
				t.Errorf("stats %+v, %v; want one corruption with %q", st, rd.Corruption(), c.reason)
			}
			for i := range uint64(3) {
				if !w.write(2, 1, 10+i, 0, 0) {
					t.Error("the shard is full")
				}
			}
			rd.Drain(collect(t, &got))
			if d := cmp.Diff([]uint64{0, 1, 2, 10, 11, 12}, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if st := rd.Stats(); st.Corrupt != 1 {
				t.Errorf("%d corruptions after the repair", st.Corrupt)
			}
		})
	}
}

// bad publishes a record of 4 units with this first word.
func bad(r *Ring, w0 uint64) {
	h := peek(r, 0, ShHead)
	poke(r, 0, r.DataOff()+h*unit, w0)
	poke(r, 0, ShHead, h+4)
}

// TestCorruptMidRun keeps what comes before the damage and counts one place.
func TestCorruptMidRun(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
	rd, _ := newTestReader(t, r)
	for i := range uint64(10) {
		writerOf(r, 0).write(2, 1, i, 0, 0)
	}
	poke(r, 0, r.DataOff()+6*4*unit, 0)
	var got []uint64
	rd.Drain(collect(t, &got))
	if d := cmp.Diff([]uint64{0, 1, 2, 3, 4, 5}, got); d != "" || rd.Stats().Corrupt != 1 {
		t.Errorf("stats %+v (-want +got):\n%s", rd.Stats(), d)
	}
	if pos := rd.Corruption().Pos; pos != 24 {
		t.Errorf("corruption at unit %d, want 24", pos)
	}
}

// TestCorruptLocked does the same to a locked shard, where Reap must end the stall.
func TestCorruptLocked(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(r *Ring)
		dead   uint64 // of 3 records behind the damage
		marks  int    // reaps it may take
	}{
		{"head back", func(r *Ring) { poke(r, 1, ShHead, 4) }, 0, 1},
		{"head zero", func(r *Ring) { poke(r, 1, ShHead, 0) }, 0, 1},
		{"head far ahead", func(r *Ring) { poke(r, 1, ShHead, 1<<47) }, 0, 1},
		{"count", func(r *Ring) { poke(r, 1, ShHead, peek(r, 1, ShHead)+reservation) }, 0, 1},
		{"count back", func(r *Ring) { poke(r, 1, ShHead, peek(r, 1, ShHead)-reservation) }, 0, 1},
		{"impossible count", func(r *Ring) { poke(r, 1, ShHead, peek(r, 1, ShHead)+900*reservation+8) }, 0, 1},
		{"size 0", func(r *Ring) { poke(r, 1, r.DataOff()+16*unit, 2<<EventShift) }, 3, 1},
		{"size too large", func(r *Ring) { poke(r, 1, r.DataOff()+16*unit, 0xfff|2<<EventShift) }, 3, 1},
		{"event", func(r *Ring) { poke(r, 1, r.DataOff()+16*unit, 4|9<<EventShift) }, 3, 1},
		{"zeroed", func(r *Ring) { poke(r, 1, r.DataOff()+16*unit, 0) }, 3, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
			rd, _ := newTestReader(t, r)
			w := writerOf(r, 1)
			var got []uint64
			for i := range uint64(4) {
				w.write(2, 1, i, 0, 0)
			}
			rd.Drain(collect(t, &got))
			if c.dead > 0 {
				for i := range c.dead {
					w.write(2, 1, 5+i, 0, 0)
				}
			}
			c.damage(r)
			for range 3 {
				rd.Drain(collect(t, &got))
			}
			if len(rd.Stalls()) != 1 {
				t.Fatalf("stalls %+v, stats %+v", rd.Stalls(), rd.Stats())
			}
			dead := uint64(0)
			for range c.marks {
				dead += rd.Reap(rd.Mark())
			}
			if dead != c.dead || len(rd.Stalls()) != 0 {
				t.Errorf("%d reaped, want %d; stalls %+v", dead, c.dead, rd.Stalls())
			}
			for i := range uint64(3) {
				if !w.write(2, 1, 10+i, 0, 0) {
					t.Error("the shard is full")
				}
			}
			rd.Drain(collect(t, &got))
			if d := cmp.Diff([]uint64{0, 1, 2, 3, 10, 11, 12}, got); d != "" {
				t.Errorf("stats %+v (-want +got):\n%s", rd.Stats(), d)
			}
			checkZero(t, r, 1)
		})
	}
}

// TestRebuildRaced lets a writer get in while a shard with an impossible head is being
// rebuilt: its record must not be taken for dead.
func TestRebuildRaced(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
	rd, _ := newTestReader(t, r)
	poke(r, 1, ShHead, 1<<40)
	rd.Poll(func(Record) { t.Error("a record out of nothing") })
	mark := rd.Mark()
	poke(r, 1, ShHead, 1<<40+4+reservation) // a reservation after the mark
	rd.Reap(mark)
	if len(rd.Stalls()) != 1 || peek(r, 1, ShHead) != 1<<40+4+reservation {
		t.Errorf("stalls %+v, head %#x", rd.Stalls(), peek(r, 1, ShHead))
	}
	rd.Reap(rd.Mark())
	if len(rd.Stalls()) != 0 {
		t.Errorf("stalls %+v after a later mark", rd.Stalls())
	}
}
