package engine

import (
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
)

// Budget is the most that an event may take: see kprobes.Budget.
type Budget struct {
	Hits, Nanos uint64
}

// maxBudget bounds both: what a bucket reckons with fits in words.
const maxBudget = 1_000_000_000_000

// checkBudget says what is wrong with a budget.
func (c *Core) checkBudget(b Budget) error {
	switch {
	case b.Hits > maxBudget:
		return errno.Errorf(unix.EINVAL, "budget of %d hits a second: at most %d; 0 is no budget", b.Hits, uint64(maxBudget))
	case b.Nanos > maxBudget:
		return errno.Errorf(unix.EINVAL, "budget of %d ns a second: at most %d; 0 is no budget", b.Nanos, uint64(maxBudget))
	case b.Nanos > 0 && c.t.CodegenEnv().Kernel != nil:
		return errno.Errorf(unix.EOPNOTSUPP, "budget of %v a second: what a hit costs in a guest is not known; give hits a second", time.Duration(b.Nanos))
	}
	return nil
}

// given says whether there is a budget at all.
func (b Budget) given() bool { return b != Budget{} }

// tooManyHits is the reason why an event with the budget is disabled.
func (b Budget) tooManyHits() error {
	return errno.Errorf(unix.EDQUOT, "more than %d hits a second", b.Hits)
}

// tooMuchWork is the other one. cost is the mean of all hits, in nanoseconds.
func (b Budget) tooMuchWork(cost float64) error {
	return errno.Errorf(unix.EDQUOT, "more than %v of work a second, at %.0f ns a hit", time.Duration(b.Nanos), max(cost, 1))
}

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

// untimed is what else a hit of an event costs, or, of one that generated code does not time, all of it.
func (e *Event) untimed() float64 {
	var n float64
	switch e.form.tactic {
	case arch.TacticUprobe:
		return costUprobe
	case arch.TacticWatch:
		return costWatch
	case arch.TacticBoost, arch.TacticStep:
		n = costTrap
	default:
		n = costJump
	}
	if e.Def.Kind == event.Return {
		n += costEntry
	}
	if e.work.Count {
		n += costCount
	}
	return n
}
