package main

import (
	"sync"

	"kprobes.dev/kprobes/internal/hit"
)

// hitQueue takes hits from the ring at once and hands them on to a goroutine that may be
// slower, so that printing does not hold up the reader. What it holds is bounded: when
// the printer is too far behind, the reader waits, and the ring counts what it loses. Once the
// trace is to end it holds all that comes: the probes come out, whoever reads the lines or not.
type hitQueue struct {
	cur  *batch
	free sync.Pool
	done chan struct{}

	mu      sync.Mutex
	changed sync.Cond
	full    []*batch // handed on, not printed yet
	endless bool     // it takes any number
	closed  bool
}

// batch is a run of hits with the bytes of their records.
type batch struct {
	hits []hit.Hit
	recs []byte
}

const (
	batchBytes = 256 << 10
	maxBatches = 1024
)

// newHitQueue starts the goroutine: f gets each hit, idle is called when none is left.
func newHitQueue(f func(*hit.Hit), idle func()) *hitQueue {
	q := &hitQueue{done: make(chan struct{})}
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
			for i := range b.hits {
				f(&b.hits[i])
			}
			b.hits, b.recs = b.hits[:0], b.recs[:0]
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
	q.changed.Broadcast()
	return b, len(q.full) == 0
}

// add takes a hit.
func (q *hitQueue) add(h *hit.Hit) {
	b := q.cur
	n := len(b.recs)
	if n+len(h.Rec) > cap(b.recs) {
		q.flush()
		b, n = q.cur, 0
	}
	b.recs = append(b.recs, h.Rec...)
	b.hits = append(b.hits, *h)
	b.hits[len(b.hits)-1].Rec = b.recs[n:len(b.recs):len(b.recs)]
	if len(b.recs) >= batchBytes {
		q.flush()
	}
}

// flush hands on what has been taken.
func (q *hitQueue) flush() {
	if len(q.cur.hits) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.full) >= maxBatches && !q.endless {
		q.changed.Wait()
	}
	q.full = append(q.full, q.cur)
	q.cur = q.free.Get().(*batch)
	q.changed.Broadcast()
}

// takeAll has the queue take all that comes from now on, and nobody wait for the printer. It
// may be called while another goroutine does.
func (q *hitQueue) takeAll() {
	q.mu.Lock()
	q.endless = true
	q.mu.Unlock()
	q.changed.Broadcast()
}

// close hands on the rest and waits until all has been used.
func (q *hitQueue) close() {
	q.takeAll()
	q.flush()
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.changed.Broadcast()
	<-q.done
}
