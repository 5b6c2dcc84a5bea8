package instances

import (
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// tally is how many instances each event has.
type tally struct {
	by    target.Tallier // nil: nobody can count
	n     map[int]int    // as last counted
	until time.Time      // not counted again before
}

// count gives the numbers as they were a few milliseconds ago: counting takes a tenth of the time at most. They hold until the next call.
func (t *tally) count() map[int]int {
	if t.by == nil || time.Now().Before(t.until) {
		return t.n
	}
	start := time.Now()
	if t.n == nil {
		t.n = map[int]int{}
	}
	clear(t.n)
	if err := t.by.Tally(t.n); err != nil {
		clear(t.n)
	}
	t.until = time.Now().Add(9 * time.Since(start))
	return t.n
}

// forget has the next count look anew.
func (t *tally) forget() {
	clear(t.n)
	t.until = time.Time{}
}
