package patch

import (
	"errors"
	"iter"
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// Tries bounds the attempts at a change that a thread blocks.
type Tries struct {
	N    int           // attempts
	Wait time.Duration // before the second; before each later one it is longer by that
	Most time.Duration // to wait before any; 0: there is no bound
}

// Pause is how long to wait before an attempt, which are numbered from 0.
func (t Tries) Pause(i int) time.Duration {
	d := t.Wait * time.Duration(i)
	if t.Most > 0 {
		d = min(d, t.Most)
	}
	return d
}

// All gives the numbers of the attempts, each when it is due.
func (t Tries) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range t.N {
			time.Sleep(t.Pause(i))
			if !yield(i) {
				return
			}
		}
	}
}

// Again says whether a change is to be tried again after an error: a thread was in the way, and the change may wait for it.
func Again(c *target.Change, err error) bool {
	return errors.Is(err, target.ErrBlocked) && (!c.Once || c.Made)
}
