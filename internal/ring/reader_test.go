package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// writer is either of the two protocols.
type writer interface {
	write(event uint32, tid uint32, tsc uint64, args ...uint64) bool
}

func writerOf(r *Ring, shard int) writer {
	if r.IsLocked(shard) {
		return &lockedWriter{ring: r, shard: shard}
	}
	return &soloWriter{ring: r, shard: shard}
}

func TestRecordFields(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 3, Events: 8, DataSize: MinData})
	rd, _ := newTestReader(t, r)
	for _, shard := range []int{1, 4} {
		writerOf(r, shard).write(2, 4711, 500, 0xaaaa, 0xbbbb)
	}
	var got []Record
	n := rd.Poll(func(rec Record) {
		rec.Bytes = slices.Clone(rec.Bytes)
		got = append(got, rec)
	})
	var bytes []byte
	for _, w := range []uint64{4 | 2<<EventShift | 4711<<32, 500, 0xaaaa, 0xbbbb} {
		bytes = binary.NativeEndian.AppendUint64(bytes, w)
	}
	want := []Record{
		{Shard: 1, CPU: 1, Event: 2, TID: 4711, TSC: 500, Bytes: bytes},
		{Shard: 4, CPU: 1, Event: 2, TID: 4711, TSC: 500, Bytes: bytes},
	}
	if d := cmp.Diff(want, got); d != "" || n != 2 {
		t.Errorf("%d records (-want +got):\n%s", n, d)
	}
}

// TestOrder writes times that are mixed between shards and, in locked ones, within.
func TestOrder(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 2, Events: 8, DataSize: MinData})
	rd, clock := newTestReader(t, r)
	for shard, times := range [][]uint64{{10, 40, 50, 901}, {20, 30, 905, 1000}, {45, 15, 60, 902, 35}, {25, 5, 950}} {
		for _, at := range times {
			writerOf(r, shard).write(1, 1, at)
		}
	}
	var got []uint64
	rd.Poll(collect(t, &got))
	if d := cmp.Diff([]uint64{5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60}, got); d != "" {
		t.Errorf("up to the margin (-want +got):\n%s", d)
	}
	got, clock.now = nil, 1002
	rd.Poll(collect(t, &got))
	if d := cmp.Diff([]uint64{901, 902}, got); d != "" {
		t.Errorf("two ticks later (-want +got):\n%s", d)
	}
	got = nil
	rd.Drain(collect(t, &got))
	if d := cmp.Diff([]uint64{905, 950, 1000}, got); d != "" {
		t.Errorf("drained (-want +got):\n%s", d)
	}
	if st := rd.Stats(); st != (Stats{Read: 16}) {
		t.Errorf("stats %+v", st)
	}
	if got := rd.Tally(1); got.Read != 16 || got.Runs() != 16 {
		t.Errorf("tally %+v", got)
	}
}

// TestManyShards merges hundreds of shards with random-looking times.
func TestManyShards(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 100, Events: 8, DataSize: MinData})
	rd, clock := newTestReader(t, r)
	clock.now = 1 << 40
	x := uint64(1)
	var want []uint64
	for range 50 {
		for shard := range r.Shards() {
			x = x*6364136223846793005 + 1442695040888963407
			at := x >> 34
			want = append(want, at)
			writerOf(r, shard).write(1, 1, at)
		}
	}
	slices.Sort(want)
	var got []uint64
	rd.Poll(collect(t, &got))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if st := rd.Stats(); st.Late != 0 {
		t.Errorf("%d late in one poll", st.Late)
	}
}

func TestLateAndFuture(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
	rd, clock := newTestReader(t, r)
	var got []uint64
	writerOf(r, 0).write(1, 1, 800)
	writerOf(r, 0).write(1, 1, 1<<60)
	rd.Poll(collect(t, &got))
	writerOf(r, 1).write(1, 1, 700)
	rd.Poll(collect(t, &got))
	clock.now = 1100
	rd.Poll(collect(t, &got))
	if d := cmp.Diff([]uint64{800, 700, 1 << 60}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if st := rd.Stats(); st.Late != 1 || st.Future != 1 || st.Read != 3 {
		t.Errorf("stats %+v", st)
	}
}

// TestWrap sends records of all sizes many times round a small shard, so that every
// record comes to lie across the end, and checks every word.
func TestWrap(t *testing.T) {
	for shard, kind := range []string{"rseq", "locked"} {
		t.Run(kind, func(t *testing.T) {
			r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
			rd, _ := newTestReader(t, r)
			w := writerOf(r, shard)
			wrote, read := uint64(0), uint64(0)
			for range 20_000 {
				args := make([]uint64, wrote%7)
				for i := range args {
					args[i] = wrote<<8 | uint64(i)
				}
				for !w.write(1, 9, wrote/100, args...) {
					rd.Poll(func(rec Record) { checkArgs(t, rec, &read) })
				}
				wrote++
			}
			rd.Drain(func(rec Record) { checkArgs(t, rec, &read) })
			tally := rd.Tally(1)
			if read != wrote || tally.Read != wrote || tally.Lost == 0 {
				t.Errorf("wrote %d, read %d, tally %+v", wrote, read, tally)
			}
			if shard == 1 {
				checkZero(t, r, shard)
			}
		})
	}
}

func checkArgs(t *testing.T, rec Record, seq *uint64) {
	t.Helper()
	if len(rec.Bytes) != RecHeader+int(*seq%7)*unit || rec.TSC != *seq/100 {
		t.Fatalf("record %d: %d bytes, time %d", *seq, len(rec.Bytes), rec.TSC)
	}
	for i := 0; RecHeader+i*unit < len(rec.Bytes); i++ {
		if v := word0(rec.Bytes[RecHeader+i*unit:]); v != *seq<<8|uint64(i) {
			t.Fatalf("record %d: word %d is %#x", *seq, i, v)
		}
	}
	*seq++
}

// TestFull checks that a shard takes exactly what it can hold, and counts the rest.
func TestFull(t *testing.T) {
	for shard, kind := range []string{"rseq", "locked"} {
		t.Run(kind, func(t *testing.T) {
			r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
			rd, _ := newTestReader(t, r)
			w := writerOf(r, shard)
			for i := range uint64(130) {
				if ok := w.write(2, 1, i, i, i); ok != (i < MinData/32) {
					t.Fatalf("record %d: stored %v", i, ok)
				}
			}
			var got []uint64
			rd.Drain(collect(t, &got))
			if tally := rd.Tally(2); len(got) != 128 || tally.Lost != 2 || tally.Runs() != 130 {
				t.Errorf("read %d, tally %+v", len(got), tally)
			}
		})
	}
}

// TestBacklog lets records pile up that are too young for Poll: what does not fit into
// the reader's own memory stays in the ring, and nothing is lost twice or uncounted.
func TestBacklog(t *testing.T) {
	for shard, kind := range []string{"rseq", "locked"} {
		t.Run(kind, func(t *testing.T) {
			r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
			rd, _ := newTestReader(t, r)
			w := writerOf(r, shard)
			none := func(Record) { t.Fatal("a young record was given out") }
			for i := range 10_000 {
				w.write(2, 1, 1000, 1, 2)
				if i%100 == 0 {
					rd.Poll(none)
				}
			}
			if n := cap(rd.shards[shard].buf); n > 16*Slack {
				t.Errorf("%d bytes kept", n)
			}
			var got []uint64
			rd.Drain(collect(t, &got))
			tally := rd.Tally(2)
			if tally.Runs() != 10_000 || tally.Lost == 0 || rd.Stats().Corrupt != 0 {
				t.Errorf("read %d, tally %+v, stats %+v", len(got), tally, rd.Stats())
			}
		})
	}
}

func TestAllowRefusals(t *testing.T) {
	rd, _ := newTestReader(t, newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData}))
	for _, c := range []struct {
		event             uint32
		smallest, largest int
	}{{8, 16, 16}, {0, 15, 16}, {0, 32, 16}, {0, 16, MaxRecord + 1}, {0, -1, 1 << 40}} {
		if err := rd.Allow(c.event, c.smallest, c.largest); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v, want EINVAL", c, err)
		}
	}
	if err := rd.Allow(7, 17, MaxRecord); err != nil {
		t.Error(err)
	}
}

// TestLargestRecord sends the largest record there is over the end of the data.
func TestLargestRecord(t *testing.T) {
	for shard, kind := range []string{"rseq", "locked"} {
		t.Run(kind, func(t *testing.T) {
			r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: 2 * Slack})
			rd, _ := newTestReader(t, r)
			allow(t, rd, 3, MaxRecord, MaxRecord)
			w := writerOf(r, shard)
			args := make([]uint64, (MaxRecord-RecHeader)/unit)
			for i := range args {
				args[i] = uint64(i) * 3
			}
			w.write(1, 1, 0) // moves the others off even places
			for range 9 {
				if !w.write(3, 1, 1, args...) {
					t.Fatal("no room")
				}
				rd.Drain(func(rec Record) {
					for i, a := range args {
						if rec.Event == 3 && word0(rec.Bytes[RecHeader+i*unit:]) != a {
							t.Fatalf("word %d differs", i)
						}
					}
				})
			}
			if st := rd.Stats(); st.Read != 10 || st.Corrupt != 0 {
				t.Errorf("stats %+v, %v", st, rd.Corruption())
			}
		})
	}
}

// TestTakeover lets a second reader go on where the first stopped.
func TestTakeover(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: MinData})
	for round := range uint64(5) {
		rd, _ := newTestReader(t, r)
		var want, got []uint64
		for i := range uint64(100) {
			for shard := range 2 {
				writerOf(r, shard).write(1, 1, round*100+i)
				want = append(want, round*100+i)
			}
		}
		rd.Drain(collect(t, &got))
		if d := cmp.Diff(want, got); d != "" || rd.Stats().Corrupt != 0 {
			t.Fatalf("reader %d, stats %+v (-want +got):\n%s", round, rd.Stats(), d)
		}
	}
}

// TestNoAllocations holds the steady state of Poll to none.
func TestNoAllocations(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 2, Events: 8, DataSize: MinData})
	rd, _ := newTestReader(t, r)
	n := 0
	visit := func(Record) { n++ }
	var writers []writer
	for shard := range r.Shards() {
		writers = append(writers, writerOf(r, shard))
	}
	run := func() {
		for _, w := range writers {
			for range 20 {
				w.write(1, 1, 5)
			}
		}
		rd.Poll(visit)
	}
	run()
	if a := testing.AllocsPerRun(100, run); a != 0 {
		t.Errorf("%v allocations", a)
	}
	if n != 102*4*20 {
		t.Errorf("%d records read", n)
	}
}

func ExampleLayout() {
	l, err := NewLayout(Config{CPUs: 2})
	if err != nil {
		panic(err)
	}
	fmt.Printf("cpu 1 without rseq: head at %#x\n", l.ShardOff(l.Locked(1))+ShHead)
	// Output: cpu 1 without rseq: head at 0x601000
}

// TestHold has a reader that can not read the writers' clock: what it has just found waits
// for older records of other shards.
func TestHold(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 2, Events: 8, DataSize: MinData})
	rd := NewReader(r, &ReaderConfig{Hold: 10 * time.Millisecond})
	allow(t, rd, 1, 16, 64)
	var got []uint64
	writerOf(r, 0).write(1, 1, 1<<62)
	writerOf(r, 0).write(1, 1, 200)
	if n := rd.Poll(collect(t, &got)); n != 0 {
		t.Errorf("%d records given out at once", n)
	}
	writerOf(r, 1).write(1, 1, 100)
	rd.Poll(collect(t, &got))
	time.Sleep(20 * time.Millisecond)
	writerOf(r, 1).write(1, 1, 1<<62+1)
	rd.Poll(collect(t, &got))
	if d := cmp.Diff([]uint64{100, 200, 1 << 62}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	rd.Drain(collect(t, &got))
	if st := rd.Stats(); len(got) != 4 || st.Late+st.Future != 0 {
		t.Errorf("%v, %+v", got, st)
	}
}
