package trace

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"kprobes.dev/kprobes/internal/hit"
)

// takeBytes are those of some hundred hits.
const takeBytes = 32 << 10

// took is what Take gives, hit by hit.
func (b *buffer) took(cpu, bytes int) (hits []hit.Hit, lost uint64, more <-chan struct{}) {
	runs, more := b.Take(cpu, bytes)
	for _, r := range runs {
		lost += r.lost
		r.each(func(h *hit.Hit) { hits = append(hits, *h) })
	}
	return hits, lost, more
}

func hitOf(i int) *hit.Hit {
	return &hit.Hit{TID: i, CPU: i % 3, Nanos: uint64(i) + 1000*uint64(i%3), Rec: fmt.Appendf(nil, "record %d", i)}
}

func (b *buffer) tids(cpu int) (tids []int) {
	_, hits := b.Look(cpu)
	for h := range hits {
		tids = append(tids, h.TID)
	}
	return tids
}

func (b *buffer) stats(cpu int) bufferStats {
	s, _ := b.Look(cpu)
	return s
}

// Each CPU keeps its newest hits, whatever the others have, and what is gone is told.
func TestBufferKeepsTheNewest(t *testing.T) {
	const size, n = 64 << 10, 50_000
	b := newBuffer(size)
	for i := range n {
		b.Add(hitOf(i))
	}
	for cpu := range 3 {
		tids := b.tids(cpu)
		if len(tids) < 300 || len(tids) > size/headBytes {
			t.Fatalf("%d hits are kept of CPU %d", len(tids), cpu)
		}
		for i, tid := range tids {
			if want := (n-1-cpu)/3*3 + cpu - 3*(len(tids)-1-i); tid != want {
				t.Fatalf("CPU %d: hit %d is %d, not %d", cpu, i, tid, want)
			}
		}
		s := b.stats(cpu)
		if s.Entries != uint64(len(tids)) || s.Written != s.Entries+s.Overrun || s.Bytes > size || s.OldestNs != uint64(tids[0]+1000*cpu) {
			t.Errorf("CPU %d keeps %d: %+v", cpu, len(tids), s)
		}
	}
	if s := b.stats(AllCPUs); s.Written != n {
		t.Errorf("%d written", s.Written)
	}
	all := b.tids(AllCPUs)
	for i := range all[1:] {
		if all[i] >= all[i+1] {
			t.Fatalf("hit %d is before hit %d", all[i], all[i+1])
		}
	}
	var taken, lost uint64
	for hits, l, more := b.took(AllCPUs, takeBytes); more == nil; hits, l, more = b.took(AllCPUs, takeBytes) {
		lost += l
		for i := range hits {
			if hits[i].TID != all[taken] || string(hits[i].Rec) != fmt.Sprintf("record %d", all[taken]) {
				t.Fatalf("taken hit %d is %d with %q, not %d", taken, hits[i].TID, hits[i].Rec, all[taken])
			}
			taken++
		}
	}
	if taken != uint64(len(all)) || taken+lost != n {
		t.Errorf("%d taken of %d, %d told as lost of %d", taken, len(all), lost, n)
	}
	if s := b.stats(AllCPUs); s.Read != taken || s.Bytes != 0 || s.Entries != 0 {
		t.Errorf("behind the last: %+v", s)
	}
}

// Without overwrite the newest are dropped, and counted.
func TestBufferWithoutOverwrite(t *testing.T) {
	b := newBuffer(1 << 10)
	b.SetOverwrite(false)
	for i := range 300 {
		b.Add(hitOf(i))
	}
	tids := b.tids(1)
	s := b.stats(1)
	if len(tids) == 0 || tids[0] != 1 || s.Entries+s.Dropped != 100 || s.Overrun != 0 || s.Bytes > 1<<10 {
		t.Errorf("%v: %+v", tids, s)
	}
}

func TestBufferTake(t *testing.T) {
	b := newBuffer(0)
	for i := range 2000 {
		b.Add(hitOf(i))
	}
	if first, again := b.tids(AllCPUs), b.tids(AllCPUs); len(first) != 2000 || len(again) != 2000 {
		t.Errorf("looking takes hits out: %d, then %d of 2000", len(first), len(again))
	}
	hits, lost, _ := b.took(1, takeBytes)
	n := len(hits)
	if n < 500 || n > takeBytes/headBytes || lost != 0 || hits[0].TID != 1 || hits[n-1].TID != 3*n-2 {
		t.Errorf("of CPU 1: %d hits, %d lost", n, lost)
	}
	if one, _, _ := b.took(1, 1); len(one) != 1 || one[0].TID != 3*n+1 {
		t.Errorf("a byte is asked for: %v", one)
	}
	hits = nil
	for next := range 2000 - n - 1 {
		if len(hits) == 0 {
			hits, _, _ = b.took(AllCPUs, takeBytes)
		}
		if len(hits) == 0 || next > 0 && hits[0].TID == 0 {
			t.Fatal("hits are missing, or one came twice")
		}
		hits = hits[1:]
	}
	if _, _, more := b.took(AllCPUs, takeBytes); more == nil {
		t.Error("hits are left")
	}
	b.Add(hitOf(2000))
	if hits, _, _ := b.took(AllCPUs, takeBytes); len(hits) != 1 || hits[0].TID != 2000 {
		t.Errorf("after all were taken: %v", hits)
	}
	b.Add(hitOf(2001))
	b.Add(hitOf(2002))
	b.Clear(0)
	if tids := b.tids(AllCPUs); len(tids) != 1 || tids[0] != 2002 {
		t.Errorf("after CPU 0 was cleared: %v", tids)
	}
	o := newBuffer(0)
	b.Swap(o)
	if b.tids(AllCPUs) != nil || len(o.tids(AllCPUs)) != 1 {
		t.Error("Swap")
	}
}

// All of a hit is kept, and what was lost before it is told of, whatever its event: pages have many.
func TestBufferKeepsAll(t *testing.T) {
	b := newBuffer(0)
	var evs [100]hit.Event
	var want []hit.Hit
	lostBefore := map[int]uint64{}
	for i := range 1000 {
		h := hit.Hit{
			Event: &evs[i*7%len(evs)], Nanos: uint64(i) << 40, CPU: 1, TID: 1 << 30, GoID: uint64(i), Caller: uint64(i) * 3, Unknown: i%2 == 0, NoStack: i%3 == 0, StackOnly: i%5 == 0,
			Rec: make([]byte, i%50),
		}
		switch {
		case i%11 == 0:
			h.Comm, h.Context = fmt.Sprint("task", i), [8]byte{'d', byte(i)}
		case i%13 == 0:
			h.IP, h.Before = uint64(i), true
		}
		if i%17 == 0 {
			b.RingLost(1, uint64(i))
			b.RingLost(1, 1)
			lostBefore[i] = uint64(i) + 1
		}
		for k := range h.Rec {
			h.Rec[k] = byte(i + k)
		}
		b.Add(&h)
		want = append(want, h)
	}
	_, looked := b.Look(1)
	i := 0
	for h := range looked {
		if !reflect.DeepEqual(*h, want[i]) {
			t.Fatalf("hit %d is %+v, and was %+v", i, *h, want[i])
		}
		i++
	}
	s := b.stats(1)
	if i != len(want) || s.RingLost != s.Dropped || s.Written != 1000 {
		t.Errorf("%d hits, %+v", i, s)
	}
	for i = 0; i < len(want); {
		runs, more := b.Take(1, 10_000)
		if more != nil {
			t.Fatalf("no more behind %d", i)
		}
		for n, r := range runs {
			if r.lost != lostBefore[i] || n > 0 && r.lost > 0 {
				t.Errorf("%d lost before hit %d, want %d", r.lost, i, lostBefore[i])
			}
			r.each(func(h *hit.Hit) {
				if !reflect.DeepEqual(*h, want[i]) {
					t.Fatalf("hit %d is taken as %+v", i, *h)
				}
				i++
			})
		}
	}
	if s := b.stats(1); s.Bytes != 0 || s.Entries != 0 {
		t.Errorf("behind all: %+v", s)
	}
}

// What a buffer keeps takes about as much memory as it counts, whatever its hits are.
func TestBufferMemory(t *testing.T) {
	evs := make([]hit.Event, 30)
	for name, next := range map[string]func(i int) *hit.Hit{
		"one event":  func(i int) *hit.Hit { return &hit.Hit{Event: &evs[0], Rec: make([]byte, 24)} },
		"30 events":  func(i int) *hit.Hit { return &hit.Hit{Event: &evs[i%30], Rec: make([]byte, 24)} },
		"two sizes":  func(i int) *hit.Hit { return &hit.Hit{Event: &evs[0], Rec: make([]byte, 16+i%2*3000)} },
		"with names": func(i int) *hit.Hit { return &hit.Hit{Event: &evs[0], Comm: "task", Rec: make([]byte, 40)} },
	} {
		b := newBuffer(8 << 20)
		before := heap()
		for b.stats(0).Overrun == 0 {
			for i := range 10_000 {
				b.Add(next(i))
			}
		}
		if counts := b.stats(0).Bytes; heap()-before > counts*2 {
			t.Errorf("%s: %d bytes are counted, and %d taken", name, counts, heap()-before)
		}
		runtime.KeepAlive(b)
	}
	b := newBuffer(1 << 20)
	b.SetOverwrite(false)
	before := heap()
	for range 200_000 {
		b.Add(&hit.Hit{Event: &evs[0], Rec: make([]byte, 24)})
		if b.stats(0).Dropped > 0 {
			b.Take(0, 1)
		}
	}
	if counts := b.stats(0).Bytes; heap()-before > counts*4 {
		t.Errorf("taken one by one: %d bytes are counted, and %d taken", counts, heap()-before)
	}
	runtime.KeepAlive(b)
}

// heap is how much memory is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Several readers get each hit once, and those that wait are woken.
func TestBufferReaders(t *testing.T) {
	b := newBuffer(64 << 20)
	const n = 20_000
	done := make(chan struct{})
	var mu sync.Mutex
	seen := map[int]int{}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				hits, _, more := b.took(AllCPUs, takeBytes)
				if more != nil {
					select {
					case <-more:
						continue
					case <-done:
						return
					}
				}
				mu.Lock()
				for i := range hits {
					seen[hits[i].TID]++
				}
				if len(seen) == n {
					close(done)
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		b.Add(hitOf(i))
		if i%37 == 0 || i == n-1 {
			b.Wake()
		}
	}
	wg.Wait()
	for i := range n {
		if seen[i] != 1 {
			t.Fatalf("hit %d came %d times", i, seen[i])
		}
	}
}
