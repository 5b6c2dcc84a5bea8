package ring

import "testing"

// BenchmarkPoll is one core's way from full shards to a function that looks at every
// record, 48 bytes each: ns/op is per record. The refilling is not timed.
func BenchmarkPoll(b *testing.B) {
	for _, c := range []struct {
		name   string
		shards []int
	}{
		{"rseq", []int{0}},
		{"rseq2", []int{0, 1}},
		{"locked", []int{2}},
		{"mixed4", []int{0, 1, 2, 3}},
	} {
		b.Run(c.name, func(b *testing.B) { benchPoll(b, c.shards) })
	}
}

func benchPoll(b *testing.B, shards []int) {
	r := newTestRing(b, Config{CPUs: 2, Events: 16})
	rd := NewReader(r, &ReaderConfig{Margin: 1})
	allow(b, rd, 3, 48, 48)
	sum := uint64(0)
	visit := func(rec Record) { sum += uint64(rec.TID) + word1(rec.Bytes) }
	b.SetBytes(48)
	b.ReportAllocs()
	for done := 0; done < b.N; {
		b.StopTimer()
		fill(r, shards)
		b.StartTimer()
		done += rd.Poll(visit)
	}
	if st := rd.Stats(); st.Corrupt != 0 || st.Late != 0 {
		b.Fatalf("stats %+v", st)
	}
}

// fill writes 40 KiB of records of 48 bytes to every shard in turn, as busy CPUs do
// between two polls.
func fill(r *Ring, shards []int) {
	for range 850 {
		for _, i := range shards {
			if r.IsLocked(i) {
				(&lockedWriter{ring: r, shard: i}).write(3, 77, Now(), 1, 2, 3, 4)
			} else {
				(&soloWriter{ring: r, shard: i}).write(3, 77, Now(), 1, 2, 3, 4)
			}
		}
	}
}

// BenchmarkNanos is the conversion of one time stamp.
func BenchmarkNanos(b *testing.B) {
	c, err := NewClock(SourceTSC)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c.Nanos(c.last().tick - 1000)
	}
}
