package trace

import (
	"fmt"
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
