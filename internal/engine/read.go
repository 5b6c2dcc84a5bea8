package engine

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/hit"
)

// Poll reads the records that are there. It does not take the lock of changes.
func (c *Core) Poll(f func(*hit.Hit)) int { return c.records.Poll(f) }

// Losses tells of records that found the target's ring full, by definition and CPU, which it has not told of before: of those that Poll has come upon,
// or of all. It does not take the lock of changes.
func (c *Core) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	c.records.Losses(all, f)
}

// Ended says whether the target is gone: no record will come any more.
func (c *Core) Ended() bool { return c.can.Ended != nil && c.can.Ended() }

// Counts sums up what an event has counted so far.
func (c *Core) Counts(e *Event) Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !e.ended {
		c.lookForStrays(e)
	}
	n := c.counts(e)
	n.Strays, n.StraySlot = e.strays, e.straySlot
	return n
}

// Losing gives a function that tells how many records of an event have been lost until it is called. It takes no lock, and may be called by
// any goroutine as long as the event is there. nil: the event's records are in no ring.
func (c *Core) Losing(e *Event) func() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.t.Ring()
	if r == nil {
		return nil
	}
	ids := e.numbers()
	return func() (n uint64) {
		for _, id := range ids {
			n += r.Sum(id).Lost
		}
		return n
	}
}

// numbers are those that the event's records have.
func (e *Event) numbers() []int {
	ids := append(make([]int, 0, 3), e.ID)
	if e.tail > 0 {
		ids = append(ids, e.tail)
	}
	if e.left > 0 {
		ids = append(ids, e.left)
	}
	return ids
}

func (c *Core) counts(e *Event) Counts {
	if e.kept != nil {
		return *e.kept
	}
	n := Counts{Read: e.read.Load(), Filtered: e.failed.Load()}
	n.Active, n.Unwound = e.calls.Counts()
	n.Hits, n.Lost = e.heldCounts()
	if c.t.Ring() == nil {
		return n
	}
	for _, id := range e.numbers() {
		s := c.t.Ring().Sum(id)
		switch {
		case e.work.CountPassing: // ring.CtrFiltered
			n.Hits += s.Hits
			n.Filtered += s.Lost
		case e.work.Filter != nil: // a run that is not recorded
			n.Filtered += s.Hits
			n.Lost += s.Lost
		default:
			n.Hits += s.Hits
			n.Lost += s.Lost
		}
		n.Missed += s.Missed
		if w := e.work.Sample; w != nil && w.Role == arch.SampleEnter {
			if w.Every > 1 {
				n.Hits += s.Unwound // ring.CtrUnsampled
			}
		} else {
			n.Unwound += s.Unwound
		}
	}
	if entries, dropped, unset, ok, err := e.histogram(); ok && err == nil {
		n.Read += dropped + unset
		for i := range entries {
			n.Read += entries[i].Hits
		}
	}
	if b := e.budget; b != nil && b.events[0].Event == e { // of a budget that several have the first one tells of all
		n.Over = b.word(arch.BudgetOver)
	}
	n.Hits += n.Read + n.Filtered + n.Lost + n.Over
	return n
}

// Unreturned looks at the target, in one stop, for the calls of return events that have begun and have not returned.
func (c *Core) Unreturned() (map[*Event]Unreturned, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	active, unwound, err := c.t.Instances()
	if err != nil {
		return nil, err
	}
	out := map[*Event]Unreturned{}
	for _, e := range c.events {
		if e == nil || e.Def.Kind != event.Return || e.h != nil {
			continue
		}
		n := c.counts(e)
		out[e] = Unreturned{n.Active + uint64(active[e.ID]), n.Unwound + uint64(unwound[e.ID])}
	}
	return out, nil
}

// Unreturned: see kprobes.Unreturned.
type Unreturned struct{ Active, Unwound uint64 }
