package engine

import (
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
)

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

// tooManyHits is the reason why an event with the budget is disabled.
func (b Budget) tooManyHits() error {
	return errno.Errorf(unix.EDQUOT, "more than %d hits a second", b.Hits)
}

// tooMuchWork is the other one. cost is the mean of all hits, in nanoseconds.
func (b Budget) tooMuchWork(cost float64) error {
	return errno.Errorf(unix.EDQUOT, "more than %v of work a second, at %.0f ns a hit", time.Duration(b.Nanos), max(cost, 1))
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
