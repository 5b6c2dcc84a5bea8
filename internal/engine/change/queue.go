package change

import (
	"slices"
	"time"
)

// Queue has the functions that have not their final form yet, since a thread is in the way or the change has failed.
type Queue[F comparable] struct {
	waiting map[F]*Waiting
	pause   time.Duration
}

// Waiting is why and since when a function waits.
type Waiting struct {
	Why   error
	Since time.Time
}

// Pauses between the optimiser's attempts: each is twice the one before. A function that is queued begins anew.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Put queues a function, or notes what it waits for now.
func (q *Queue[F]) Put(f F, why error) {
	if w := q.waiting[f]; w != nil {
		w.Why = why
		return
	}
	if q.waiting == nil {
		q.waiting = map[F]*Waiting{}
	}
	q.waiting[f] = &Waiting{Why: why, Since: time.Now()}
}

// Get tells what a function waits for; nil if it does not wait.
func (q *Queue[F]) Get(f F) *Waiting { return q.waiting[f] }

// Remove takes a function out.
func (q *Queue[F]) Remove(f F) { delete(q.waiting, f) }

// Len is the number of functions that wait.
func (q *Queue[F]) Len() int { return len(q.waiting) }

// Clear takes all functions out.
func (q *Queue[F]) Clear() { clear(q.waiting) }

// Functions lists the functions that wait, in an order.
func (q *Queue[F]) Functions(cmp func(a, b F) int) []F {
	out := make([]F, 0, len(q.waiting))
	for f := range q.waiting {
		out = append(out, f)
	}
	slices.SortFunc(out, cmp)
	return out
}

// Begin gives the pause before the next attempt after something was queued, Next after an attempt that has left some.
func (q *Queue[F]) Begin() time.Duration {
	q.pause = firstPause
	return q.pause
}

// Next is the pause after one more attempt: see Begin.
func (q *Queue[F]) Next() time.Duration {
	q.pause = min(2*q.pause, lastPause)
	return q.pause
}
