package engine

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestBucket gives hits to buckets at random times, and compares what they say with the definition of a token bucket.
func TestBucket(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	empty := 0
	for range 2000 {
		rate := 1 + r.Uint64N([]uint64{3, 100, 100_000, maxBudget}[r.IntN(4)])
		now, hits := time.Unix(0, 0), r.Uint64N(1000)
		b := newBucket(rate, hits, now)
		left := float64(rate) // hits that it has, at the last look
		for range 50 {
			elapsed := time.Duration(r.Int64N(int64([]time.Duration{1, time.Millisecond, 100 * time.Millisecond, 3 * time.Second}[r.IntN(4)])))
			more := uint64(r.Float64() * 1.2 * float64(rate) * max(elapsed.Seconds(), 0.1))
			now, hits = now.Add(elapsed), hits+more
			left += float64(rate)*elapsed.Seconds() - float64(more)
			got, slack := b.fill(hits, now), 1+1e-6*float64(rate)
			if got && left > slack || !got && left < -slack {
				t.Fatalf("rate %d: empty is %v with %f left", rate, got, left)
			}
			if got {
				empty++
				break
			}
			left = min(left, float64(rate))
			if d := float64(b.limit) - float64(hits) - left; d > slack || d < -slack {
				t.Fatalf("rate %d: the limit lets %d hits come, want %f", rate, b.limit-hits, left)
			}
		}
	}
	if empty < 200 || empty > 1990 {
		t.Errorf("%d buckets were empty in the end", empty)
	}
}

// TestBucketLate: one that nobody has filled for long is not empty, if no more hits have come than the time brings; and a slow one keeps the
// parts of a hit.
func TestBucketLate(t *testing.T) {
	now := time.Unix(0, 0)
	b := newBucket(1000, 0, now)
	if now = now.Add(10 * time.Second); b.fill(10_999, now) {
		t.Error("10,999 hits in 10 s are more than 1,000 a second and a second's hits at once")
	}
	if b.limit != 11_000 {
		t.Errorf("limit %d, want 11000", b.limit)
	}
	if now = now.Add(time.Second); !b.fill(12_001, now) {
		t.Error("12,001 hits in 11 s are no more than that")
	}
	now = time.Unix(0, 0)
	b = newBucket(3, 0, now)
	hits := uint64(0)
	for i := range uint64(1000) { // a hit each third of a second, seen every hundredth
		now = now.Add(10 * time.Millisecond)
		if hits = i * 3 / 100; b.fill(hits, now) {
			t.Fatalf("%d hits in %d ms are too many", hits, 10*(i+1))
		}
	}
	if b.limit < hits+2 || b.limit > hits+3 {
		t.Errorf("limit %d after %d hits", b.limit, hits)
	}
}

// TestBudgetCheck names what is wrong with a budget.
func TestBudgetCheck(t *testing.T) {
	if err := (Budget{Hits: maxBudget}).check(); err != nil {
		t.Error(err)
	}
	if err := (Budget{Hits: maxBudget + 1}).check(); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
	if err := (Budget{Hits: 7}).exceeded(); !errors.Is(err, unix.EDQUOT) || err.Error() != "more than 7 hits a second" {
		t.Error(err)
	}
}
