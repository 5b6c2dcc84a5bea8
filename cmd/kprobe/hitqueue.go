package main

import (
	"maps"
	"slices"
	"sync"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
)

// hitQueue takes hits from the ring at once and hands them on to a goroutine that may be
// slower, so that printing does not hold up the reader, who reads for others too. What it holds is bounded: when
// the printer is too far behind, hits are lost, and counted. Once the
// trace is to end it holds all that comes: the probes come out, whoever reads the lines or not.
type hitQueue struct {
	free sync.Pool
	done chan struct{}

	in   sync.Mutex // held by who adds
	cur  *batch
	lost map[*hit.Event]uint64 // since nobody printed them

	mu      sync.Mutex
	changed sync.Cond
	full    []*batch // handed on, not printed yet
	max     int      // of full
	endless bool     // it takes any number
	closed  bool
}

// batch is a run of hits with the bytes of their records.
type batch struct {
	hits   []hit.Hit
	recs   []byte
	losses []queuedLoss // in their order
	calls  []queuedCall
}

// queuedLoss is hits of a CPU that were lost.
type queuedLoss struct {
	hit.Loss
	before int // so many hits of the batch came before
}

// queuedCall is a function that is called when so many hits of the batch have been used.
type queuedCall struct {
	f      func()
	before int
}

// add copies a hit into the batch.
func (b *batch) add(h *hit.Hit) {
	n := len(b.recs)
	b.recs = append(b.recs, h.Rec...)
	b.hits = append(b.hits, *h)
	b.hits[len(b.hits)-1].Rec = b.recs[n:len(b.recs):len(b.recs)]
}

func (b *batch) empty() bool { return len(b.hits)+len(b.losses)+len(b.calls) == 0 }

func (b *batch) clear() {
	clear(b.calls)
	b.hits, b.recs, b.losses, b.calls = b.hits[:0], b.recs[:0], b.losses[:0], b.calls[:0]
}

// each hands out what is in a batch.
func (b *batch) each(f func(*hit.Hit), lose func(hit.Loss)) {
	losses, calls := b.losses, b.calls
	for i := range len(b.hits) + 1 {
		for ; len(losses) > 0 && losses[0].before == i; losses = losses[1:] {
			lose(losses[0].Loss)
		}
		for ; len(calls) > 0 && calls[0].before == i; calls = calls[1:] {
			calls[0].f()
		}
		if i < len(b.hits) {
			f(&b.hits[i])
		}
	}
}

const (
	batchBytes = 256 << 10
	maxBatches = 1024
)

// newHitQueue starts the goroutine: f gets each hit, lose is told of those that are lost, idle is called when none is left.
func newHitQueue(f func(*hit.Hit), lose func(hit.Loss), idle func()) *hitQueue {
	q := &hitQueue{done: make(chan struct{}), lost: map[*hit.Event]uint64{}, max: maxBatches}
	q.changed.L = &q.mu
	q.free.New = func() any { return &batch{recs: make([]byte, 0, batchBytes+64<<10)} }
	q.cur = q.free.Get().(*batch)
	go func() {
		defer close(q.done)
		for {
			b, last := q.next()
			if b == nil {
				return
			}
			b.each(f, lose)
			b.clear()
			q.free.Put(b)
			if last {
				idle()
			}
		}
	}()
	return q
}

// next waits for a batch and says whether it is the last one for now; nil once the queue is
// closed and empty.
func (q *hitQueue) next() (b *batch, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.full) == 0 && !q.closed {
		q.changed.Wait()
	}
	if len(q.full) == 0 {
		return nil, true
	}
	b, q.full[0] = q.full[0], nil
	q.full = q.full[1:]
	return b, len(q.full) == 0
}

// add takes a hit.
func (q *hitQueue) add(h *hit.Hit) {
	q.in.Lock()
	defer q.in.Unlock()
	if len(q.cur.recs)+len(h.Rec) > cap(q.cur.recs) {
		q.handOn()
	}
	q.cur.add(h)
	if len(q.cur.recs) >= batchBytes {
		q.handOn()
	}
}

// lose takes hits of a CPU that were lost on their way here.
func (q *hitQueue) lose(_ *event.Def, cpu int, hits uint64) {
	q.in.Lock()
	defer q.in.Unlock()
	before := len(q.cur.hits)
	for i := len(q.cur.losses) - 1; i >= 0 && q.cur.losses[i].before == before; i-- {
		if l := &q.cur.losses[i]; l.CPU == cpu { // of another event
			l.Hits += hits
			return
		}
	}
	q.cur.losses = append(q.cur.losses, queuedLoss{hit.Loss{CPU: cpu, Hits: hits}, before})
}

// then has the goroutine call a function when it has used all hits that were added before. They may be lost, the call is not.
func (q *hitQueue) then(f func()) {
	q.in.Lock()
	defer q.in.Unlock()
	q.cur.calls = append(q.cur.calls, queuedCall{f, len(q.cur.hits)})
}

// flush hands on what has been taken, if the printer has begun with all that it was handed before. Else the next flush does, and
// the batch goes on filling: many small ones would use up the room.
func (q *hitQueue) flush() {
	q.in.Lock()
	defer q.in.Unlock()
	q.mu.Lock()
	behind := len(q.full) > 0
	q.mu.Unlock()
	if !behind {
		q.handOn()
	}
}

// handOn hands on what has been taken, or loses it if there is no room. Precondition: q.in is held.
func (q *hitQueue) handOn() {
	if q.cur.empty() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.full) >= q.max && !q.endless {
		q.drop()
		return
	}
	q.full = append(q.full, q.cur)
	q.cur = q.free.Get().(*batch)
	q.changed.Signal()
}

// drop loses what has been taken. Precondition: q.in is held.
func (q *hitQueue) drop() {
	lost, calls := map[int]uint64{}, slices.Clone(q.cur.calls)
	for i := range q.cur.hits {
		h := &q.cur.hits[i]
		q.lost[h.Event]++
		lost[h.CPU]++
	}
	for i := range q.cur.losses {
		lost[q.cur.losses[i].CPU] += q.cur.losses[i].Hits
	}
	q.cur.clear()
	for _, c := range calls {
		q.cur.calls = append(q.cur.calls, queuedCall{f: c.f})
	}
	for _, cpu := range slices.Sorted(maps.Keys(lost)) {
		q.cur.losses = append(q.cur.losses, queuedLoss{Loss: hit.Loss{CPU: cpu, Hits: lost[cpu]}})
	}
}

// losses are the hits that were lost, by event.
func (q *hitQueue) losses() map[*hit.Event]uint64 {
	q.in.Lock()
	defer q.in.Unlock()
	return maps.Clone(q.lost)
}

// takeAll has the queue take all that comes from now on.
func (q *hitQueue) takeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endless = true
}

// close hands on the rest and waits until all has been used.
func (q *hitQueue) close() {
	q.takeAll()
	q.in.Lock()
	q.handOn()
	q.in.Unlock()
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.changed.Broadcast()
	<-q.done
}
