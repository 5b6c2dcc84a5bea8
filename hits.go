package kprobes

import (
	"iter"
	"sync"
	"time"

	"kprobes.dev/kprobes/internal/engine/records"
)

// The pause between two looks at the ring grows from hitsPauseMin to hitsPauseMax while nothing comes. It is never left out: in the own
// process what reads records may itself be probed.
const (
	hitsPauseMin = 100 * time.Microsecond
	hitsPauseMax = 16 * time.Millisecond
)

// Hits gives the records of the events, in the order of their times, as they come:
//
//	for h := range core.Hits(ctx) {
//		fmt.Println(h.Event.Name, h.Value("n"))
//	}
//
// The loop ends when ctx is done, or when the target has ended: then it gives what was recorded until that moment, which takes some
// milliseconds more. With a ctx that is done already it does only that. ctx is a context.Context, of which Hits needs no more than Done.
//
// A Hit, and all that it holds, stays valid and belongs to the body of the loop, which may call any function of this package, and may
// take its time: records wait in the target's ring meanwhile, and are lost, and counted (Counts.Lost), only when that is full. A loop
// that is left by break or return leaves no gap: the next loop, Poll or Close goes on where it was. Of several loops at a time each
// gets a part of the hits. Hits does not call Sync: where AddOptions.Late needs that, another goroutine does.
//
// In the own process a loop whose body calls what it probes never runs out of hits.
func (c *Core) Hits(ctx interface{ Done() <-chan struct{} }) iter.Seq[*Hit] {
	return func(yield func(*Hit) bool) {
		idle := time.NewTimer(0)
		defer idle.Stop()
		for pause := hitsPauseMin; ; {
			n := c.e.Poll(c.unread.add)
			if !c.unread.each(yield) {
				return
			}
			if pause = min(2*pause, hitsPauseMax); n > 0 {
				pause = hitsPauseMin
			}
			idle.Reset(pause)
			select {
			case <-ctx.Done():
				c.lastHits(yield)
				return
			case <-idle.C:
			}
			if n == 0 && c.e.Ended() {
				c.lastHits(yield)
				return
			}
		}
	}
}

// lastHits gives what has been recorded by now.
func (c *Core) lastHits(yield func(*Hit) bool) {
	c.e.Poll(c.unread.add) // what lies in the ring of a target with a clock of its own waits from when it was seen
	if !c.unread.each(yield) {
		return
	}
	time.Sleep(records.SettleTime)
	c.e.Poll(c.unread.add)
	c.unread.each(yield)
}

// unread are hits that have been read for a loop over Hits, and that no loop has been given yet. What was given out is never written
// to again.
type unread struct {
	mu   sync.Mutex
	hits []Hit
	recs []byte // room for records
}

// recsRoom is the room for records that is made at once, in bytes.
const recsRoom = 8 << 10

// add adds a copy of a hit.
func (u *unread) add(h *Hit) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if cap(u.recs)-len(u.recs) < len(h.Rec) {
		u.recs = make([]byte, 0, max(recsRoom, len(h.Rec)))
	}
	n := len(u.recs)
	u.recs = append(u.recs, h.Rec...)
	u.hits = append(u.hits, *h)
	u.hits[len(u.hits)-1].Rec = u.recs[n:len(u.recs):len(u.recs)]
}

// next takes the oldest hit; nil: there is none.
func (u *unread) next() *Hit {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.hits) == 0 {
		return nil
	}
	h := &u.hits[0]
	u.hits = u.hits[1:]
	return h
}

// each gives out the hits, and says whether the loop goes on.
func (u *unread) each(yield func(*Hit) bool) bool {
	for h := u.next(); h != nil; h = u.next() {
		if !yield(h) {
			return false
		}
	}
	return true
}

// give gives out the hits, and returns how many.
func (u *unread) give(f func(*Hit)) (n int) {
	u.each(func(h *Hit) bool {
		n++
		f(h)
		return true
	})
	return n
}
