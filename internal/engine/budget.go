package engine

import (
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Budget is the most that an event may take: see kprobes.Budget.
type Budget struct {
	Hits uint64
}

// maxBudget bounds Budget.Hits: what a bucket reckons with fits in words.
const maxBudget = 1_000_000_000_000

// check says what is wrong with a budget.
func (b Budget) check() error {
	if b.Hits > maxBudget {
		return errno.Errorf(unix.EINVAL, "budget of %d hits a second: at most %d; 0 is no budget", b.Hits, uint64(maxBudget))
	}
	return nil
}

// given says whether there is a budget at all.
func (b Budget) given() bool { return b != Budget{} }

// exceeded is the reason why an event with the budget is disabled.
func (b Budget) exceeded() error {
	return errno.Errorf(unix.EDQUOT, "more than %d hits a second", b.Hits)
}

// bucket holds the hits that may come: at most those of a second. Time fills it evenly.
type bucket struct {
	rate  uint64    // hits a second
	limit uint64    // the number of the hit at which it is empty
	rest  uint64    // a part of the next hit, in billionths
	at    time.Time // when it was filled last
}

func newBucket(rate, hits uint64, now time.Time) bucket {
	return bucket{rate: rate, limit: hits + rate, at: now}
}

// fill adds what has come since it was called last. hits is the number of all hits, which was read before now. empty: more hits have come than
// there were in it. One that nobody has filled for a while is not empty for that.
func (b *bucket) fill(hits uint64, now time.Time) (empty bool) {
	elapsed := min(max(now.Sub(b.at), 0), time.Hour)
	b.at = now
	hi, lo := bits.Mul64(b.rate, uint64(elapsed))
	lo, carry := bits.Add64(lo, b.rest, 0)
	more, rest := bits.Div64(hi+carry, lo, uint64(time.Second))
	b.limit, b.rest = b.limit+more, rest
	if hits > b.limit {
		return true
	}
	if most := hits + b.rate; b.limit >= most {
		b.limit, b.rest = most, 0
	}
	return false
}
