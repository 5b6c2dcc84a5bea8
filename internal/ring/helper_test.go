package ring

import "testing"

func newTestRing(t testing.TB, cfg Config) *Ring {
	t.Helper()
	r, err := Create(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func allow(t testing.TB, rd *Reader, event uint32, smallest, largest int) {
	t.Helper()
	if err := rd.Allow(event, smallest, largest); err != nil {
		t.Fatal(err)
	}
}

// manual is a clock that a test sets.
type manual struct{ now uint64 }

func (m *manual) Now() uint64 { return m.now }

// newTestReader is a reader of r with a manual clock at 1000 and a margin of 100; event
// 1 has 16 to 64 bytes, event 2 exactly 32.
func newTestReader(t testing.TB, r *Ring) (*Reader, *manual) {
	t.Helper()
	m := &manual{now: 1000}
	rd := NewReader(r, &ReaderConfig{Margin: 100, Now: m.Now})
	allow(t, rd, 1, 16, 64)
	allow(t, rd, 2, 32, 32)
	return rd, m
}

// collect is a function for Poll that keeps the records' times, and checks their sizes.
func collect(t testing.TB, into *[]uint64) func(Record) {
	return func(rec Record) {
		if n := int(UnitsOf(word0(rec.Bytes)) * unit); n != len(rec.Bytes) {
			t.Errorf("record of %d bytes says %d", len(rec.Bytes), n)
		}
		*into = append(*into, rec.TSC)
	}
}

// poke stores a word in a shard: off counts from the shard's start.
func poke(r *Ring, shard int, off, v uint64) { store(r.mem, r.ShardOff(shard)+off, v) }

func peek(r *Ring, shard int, off uint64) uint64 { return load(r.mem, r.ShardOff(shard)+off) }

// checkZero checks what the locked protocol rests on: no word is set that is not part of
// a record in waiting, here none.
func checkZero(t *testing.T, r *Ring, shard int) {
	t.Helper()
	for off := r.DataOff(); off < r.DataOff()+r.Data+Slack; off += unit {
		if v := peek(r, shard, off); v != 0 {
			t.Fatalf("shard %d: word %#x behind the start of the data is %#x, not zero", shard, off-r.DataOff(), v)
		}
	}
}
