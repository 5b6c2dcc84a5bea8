package target

// Reaper is a Target that can reclaim instances (Pool) of calls that never return, while probes are armed.
type Reaper interface {
	// Crowded says whether so many instances are taken that a Reap is worth its stop. It
	// stops nothing.
	Crowded() bool
	// Reap reclaims instances, in one stop of the target. It may leave some of them for
	// another time.
	Reap(r *Reap) error
}

// Reap is one look for instances that can be reclaimed.
type Reap struct {
	Live  []int        // events of return probes that may be armed
	Left  bool         // of these the instances of calls that were left are wanted, too
	Ended map[int]bool // events that no site has any more: all of theirs are, once no thread is in code that was removed

	// What was reclaimed, by event.
	Active  map[int]int // calls in progress, whose returns will not be seen; of Ended events
	Unwound map[int]int // calls that were left by unwinding, or by the end of their thread
	Whole   bool        // nothing of the Ended events is left
}

// Tallier is a Target that can count the instances of return probes while it runs.
type Tallier interface {
	// Tally adds to n how many instances of each event are taken: of calls in progress, and of
	// such as were left and whose instances have not been reclaimed. Calls that begin or end
	// meanwhile may count or not.
	Tally(n map[int]int) error
}

// Took says whether anything was reclaimed.
func (r *Reap) Took() bool { return len(r.Active)+len(r.Unwound) > 0 }
