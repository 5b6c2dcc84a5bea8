package trace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"kprobes.dev/kprobes/internal/hit"
)

func hitOf(i int) *hit.Hit {
	return &hit.Hit{TID: i, CPU: i % 3, Rec: fmt.Appendf(nil, "record %d", i)}
}

func (b *Buffer) tids() (tids []int) {
	runs, _ := b.Hits()
	for _, hits := range runs {
		for i := range hits {
			tids = append(tids, hits[i].TID)
		}
	}
	return tids
}

func TestBufferKeepsTheNewest(t *testing.T) {
	b := NewBuffer(1)
	const n = 50_000
	for i := range n {
		b.Add(hitOf(i))
	}
	tids := b.tids()
	if len(tids) < 1000 || len(tids) > n/2 {
		t.Fatalf("%d hits are kept", len(tids))
	}
	for i, tid := range tids {
		if want := n - len(tids) + i; tid != want {
			t.Fatalf("hit %d is %d, not %d", i, tid, want)
		}
	}
	if _, written := b.Hits(); written != n {
		t.Errorf("%d written", written)
	}
	hits, lost, err := b.Take(t.Context())
	if err != nil || len(lost) != 3 || lost[0].CPU != 0 || lost[2].CPU != 2 {
		t.Fatalf("lost %v: %v", lost, err)
	}
	if got, want := lost[0].Hits+lost[1].Hits+lost[2].Hits, uint64(hits[0].TID); got != want {
		t.Errorf("%d hits told as lost before hit %d", got, want)
	}
	for i := range hits {
		if string(hits[i].Rec) != fmt.Sprintf("record %d", hits[i].TID) {
			t.Fatalf("hit %d has the record %q", hits[i].TID, hits[i].Rec)
		}
	}
	if b.bytes > b.max {
		t.Errorf("%d bytes of %d", b.bytes, b.max)
	}
}

func TestBufferTake(t *testing.T) {
	b := NewBuffer(0)
	for i := range 2000 {
		b.Add(hitOf(i))
	}
	before := b.tids()
	if got := b.tids(); len(before) != 2000 || len(got) != 2000 {
		t.Errorf("looking takes hits out: %d, then %d of 2000", len(before), len(got))
	}
	next := 0
	for next < 2000 {
		hits, lost, err := b.Take(t.Context())
		if err != nil || len(hits) == 0 || len(lost) > 0 {
			t.Fatalf("%d hits, lost %v: %v", len(hits), lost, err)
		}
		for i := range hits {
			if hits[i].TID != next {
				t.Fatalf("hit %d, not %d", hits[i].TID, next)
			}
			next++
		}
		if got := len(b.tids()); got != 2000-next {
			t.Errorf("%d left after %d were taken", got, next)
		}
	}
	b.Add(hitOf(2000))
	hits, _, err := b.Take(t.Context())
	if err != nil || len(hits) != 1 || hits[0].TID != 2000 {
		t.Errorf("after all were taken: %v, %v", hits, err)
	}
	b.Add(hitOf(2001))
	b.Clear()
	if tids := b.tids(); tids != nil {
		t.Errorf("after Clear: %v", tids)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := b.Take(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Take of a caller who has gone: %v", err)
	}
}

// Several readers get each hit once, and those that wait are woken.
func TestBufferReaders(t *testing.T) {
	b := NewBuffer(64 << 20)
	const n = 20_000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	seen := map[int]int{}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				hits, _, err := b.Take(ctx)
				if err != nil {
					return
				}
				mu.Lock()
				for i := range hits {
					seen[hits[i].TID]++
				}
				if len(seen) == n {
					cancel()
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
