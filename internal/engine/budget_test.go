package engine

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
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

// TestBudgetCheck names what is wrong with a budget, and why an event is disabled.
func TestBudgetCheck(t *testing.T) {
	c := &Core{editor: editor{t: kernelTarget{env: &arch.CodegenEnv{}}}}
	if err := c.checkBudget(Budget{Hits: maxBudget, Nanos: maxBudget}); err != nil {
		t.Error(err)
	}
	for _, b := range []Budget{{Hits: maxBudget + 1}, {Nanos: maxBudget + 1}} {
		if err := c.checkBudget(b); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "1000000000001") {
			t.Error(err)
		}
	}
	c.t = kernelTarget{env: &arch.CodegenEnv{Kernel: &arch.Kernel{}}}
	if err := c.checkBudget(Budget{Nanos: 1}); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Error(err)
	}
	if err := (Budget{Hits: 7}).tooManyHits(); !errors.Is(err, unix.EDQUOT) || err.Error() != "more than 7 hits a second" {
		t.Error(err)
	}
	if err := (Budget{Nanos: 5e6}).tooMuchWork(412.3); !errors.Is(err, unix.EDQUOT) || err.Error() != "more than 5ms of work a second, at 412 ns a hit" {
		t.Error(err)
	}
}

// kernelTarget is a target that is asked for nothing but what generated code knows.
type kernelTarget struct {
	target.Target
	env *arch.CodegenEnv
}

func (k kernelTarget) CodegenEnv() *arch.CodegenEnv { return k.env }

// TestCost takes the mean of what was timed, and forgets what is long ago.
func TestCost(t *testing.T) {
	c := cost{tick: 0.5}
	if n := c.work(); n != costUnknown {
		t.Errorf("nothing was timed: %f", n)
	}
	ticks, timed := uint64(300), uint64(3)
	c.take(ticks, timed)
	if n := c.work(); n != 50 {
		t.Errorf("three hits of 100 ticks: %f ns", n)
	}
	for range 40 {
		ticks, timed = ticks+1000*500, timed+500
		c.take(ticks, timed)
		if c.timed > 2*recentTimed {
			t.Fatalf("the mean of %f hits", c.timed)
		}
	}
	if n := c.work(); n < 499 || n > 500 {
		t.Errorf("many hits of 1000 ticks: %f ns", n)
	}
	c.take(ticks, timed)
	if n := c.work(); n < 499 || n > 500 {
		t.Errorf("no more: %f ns", n)
	}
}
