package engine

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/trace"
)

// Poll reads the records that are there, in the order of their times, and returns how
// many. A Hit is valid while f runs. f must not call the Core. Poll does not wait for a change that
// another goroutine makes.
func (c *Core) Poll(f func(*trace.Hit)) int { return c.records.poll(f) }

// Counts is what an event has counted: Hits = Read + Lost, or Counted for an event that
// does not record. For a return probe Hits are returns, and entries are
// Hits + Unwound + Active + Missed.
type Counts struct {
	Hits    uint64
	Read    uint64 // records read
	Lost    uint64 // records that found the ring full
	Missed  uint64 // entries without a free instance, or without stack to work on
	Unwound uint64 // calls left by an exception, a panic, longjmp or the end of their thread
	Active  uint64 // calls in progress when the probe was taken out
	// Strays are returns of the event's function that came to its trampoline and belonged to no call which any of the
	// function's events knew, and StraySlot is where on the stack the last of them had its return address: calls and
	// returns do not match in such a program. Where an event of the function was taken out it is not known, and 0.
	Strays, StraySlot uint64
}

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

func (c *Core) counts(e *Event) Counts {
	if e.kept != nil {
		return *e.kept
	}
	n := Counts{Read: e.read.Load(), Unwound: uint64(e.unwound) + e.reaped, Active: uint64(e.active) + e.cut}
	n.Hits, n.Lost = e.heldCounts()
	if c.t.Ring() == nil {
		return n
	}
	for _, id := range []int{e.ID, e.tail} {
		if id < 0 {
			continue
		}
		s := c.t.Ring().Sum(id)
		n.Hits += s.Hits
		n.Lost += s.Lost
		n.Missed += s.Missed
		n.Unwound += s.Unwound
	}
	n.Hits += n.Read + n.Lost
	return n
}

// Close disarms every event, reads what is left and takes everything out of the target.
// f gets the records, as in Poll; it may be nil.
func (c *Core) Close(f func(*trace.Hit)) error {
	c.mu.Lock()
	defer c.unlock()
	if f == nil {
		f = func(*trace.Hit) {}
	}
	c.stopOptimizing()
	also := stopping{then: c.classify}
	if t := c.can.Sequencer; t != nil && len(c.stubbed.walkers) == 0 {
		also.end = t.CloseStopped
	}
	var live []*Event
	for _, e := range c.events {
		if e != nil && !e.ended && (also.end != nil || !slices.Contains(c.sharing, e)) && (e.fn == nil || c.stubbed.walkers[e.fn.start] != e) {
			live = append(live, e)
		}
	}
	err := errors.Join(c.dropStubs(), c.remove(live, also))
	for try := 1; err != nil && !errors.Is(err, target.ErrGone) && try < addTries && c.moved(err); try++ {
		err = c.remove(live, also) // without what was in objects that have gone
	}
	if len(c.stubbed.walkers) > 0 && err == nil {
		err = c.putBack()
	}
	if len(c.sharing) > 0 && err == nil { // no code is left that relies on them
		err = c.remove(c.sharing, stopping{})
	}
	if errors.Is(err, target.ErrGone) {
		err = nil
	}
	c.closeProbes(live, err != nil)
	return errors.Join(err, c.records.close(f))
}

// Unreturned looks at the target, in one stop, for the calls of return events that have begun and have not returned: as
// Counts has them, with those of which only an instance tells.
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

// Unreturned are calls of a return event that are in progress, and those that were left and will never return.
type Unreturned struct{ Active, Unwound uint64 }

// classify asks which of the instances that are left are calls in progress.
func (c *Core) classify() error {
	active, unwound, err := c.t.Instances()
	for _, e := range c.events {
		if e != nil {
			e.active, e.unwound = active[e.ID], unwound[e.ID]
		}
	}
	return err
}
