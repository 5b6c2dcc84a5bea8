package engine

import (
	"math/bits"
	"time"
)

// bucket holds what may come of something, hits or nanoseconds: at most as much as in a second. Time fills it evenly.
type bucket struct {
	rate  uint64    // a second
	limit uint64    // how much has come when it is empty
	rest  uint64    // a part of the next one, in billionths
	at    time.Time // when it was filled last
}

func newBucket(rate, come uint64, now time.Time) bucket {
	return bucket{rate: rate, limit: come + rate, at: now}
}

// fill adds what time has brought since it was called last. come is all that has come, which was read before now. empty: more has come than
// was in it. One that nobody has filled for a while is not empty for that.
func (b *bucket) fill(come uint64, now time.Time) (empty bool) {
	elapsed := min(max(now.Sub(b.at), 0), time.Hour)
	b.at = now
	hi, lo := bits.Mul64(b.rate, uint64(elapsed))
	lo, carry := bits.Add64(lo, b.rest, 0)
	more, rest := bits.Div64(hi+carry, lo, uint64(time.Second))
	b.limit, b.rest = b.limit+more, rest
	if come > b.limit {
		return true
	}
	if most := come + b.rate; b.limit >= most {
		b.limit, b.rest = most, 0
	}
	return false
}

// cost is what a hit costs, as far as it is known.
type cost struct {
	ticks, timed         float64 // of hits that generated code has timed, the recent ones
	seenTicks, seenTimed uint64  // the sums that these were taken of
	tick                 float64 // its length in nanoseconds
}

// Costs in nanoseconds of what generated code does not time: rounded up from what kprobe bench tells of the machines that it was written on.
const (
	costUnknown = 100  // the work of a hit, before one was timed
	costJump    = 5    // the way to the work and back
	costTrap    = 2000 // the same by a breakpoint
	costEntry   = 25   // the entry of a return probe
	costCount   = 10   // a hit that only counts
	costUprobe  = 3000 // one that the kernel holds
	costWatch   = 10_000
	recentTimed = 1024 // hits of which the mean is taken, at most twice as many
)

// take takes in the sums of what generated code has timed.
func (c *cost) take(ticks, timed uint64) {
	c.ticks += float64(ticks - min(c.seenTicks, ticks))
	c.timed += float64(timed - min(c.seenTimed, timed))
	c.seenTicks, c.seenTimed = ticks, timed
	for c.timed > 2*recentTimed {
		c.ticks, c.timed = c.ticks/2, c.timed/2
	}
}

// work is what the work of a hit costs that generated code times.
func (c *cost) work() float64 {
	if c.timed == 0 {
		return costUnknown
	}
	return c.ticks / c.timed * c.tick
}
