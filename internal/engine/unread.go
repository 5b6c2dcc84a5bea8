package engine

import (
	"kprobes.dev/kprobes/internal/hit"
)

// Keep reads the records that are there, and returns how many. Their hits wait for a loop.
func (c *Core) Keep() int { return c.Poll(c.unread.add) }

// EachKept gives out the hits that wait, and says whether the loop goes on.
func (c *Core) EachKept(yield func(*hit.Hit) bool) bool { return c.unread.each(yield) }

// GiveKept gives out the hits that wait, and returns how many.
func (c *Core) GiveKept(f func(*hit.Hit)) int { return c.unread.give(f) }

// recsRoom is the room for records that is made at once, in bytes.
const recsRoom = 8 << 10

// add adds a copy of a hit.
func (u *unread) add(h *hit.Hit) {
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
func (u *unread) next() *hit.Hit {
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
func (u *unread) each(yield func(*hit.Hit) bool) bool {
	for h := u.next(); h != nil; h = u.next() {
		if !yield(h) {
			return false
		}
	}
	return true
}

// give gives out the hits, and returns how many.
func (u *unread) give(f func(*hit.Hit)) (n int) {
	u.each(func(h *hit.Hit) bool {
		n++
		f(h)
		return true
	})
	return n
}
