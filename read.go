package kprobes

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes/arch/amd64"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/ring"
	"kprobes.dev/kprobes/target"
	"kprobes.dev/kprobes/trace"
)

// Poll reads the records that are there, in the order of their times, and returns how
// many. A Hit is valid while f runs. f must not call the Core.
func (c *Core) Poll(f func(*trace.Hit)) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reader == nil {
		return 0
	}
	if err := c.clock.sync(); err != nil {
		return 0
	}
	now := c.reader.Now() // all that is older by the reader's margin can be read from here on
	c.early.add(c.uprobeHits(), time.Now())
	n, until := c.reader.PollAt(now, c.hits(func(h *trace.Hit) {
		c.early.give(h.Nanos, f)
		f(h)
	}))
	c.early.give(c.early.limit(c.clock, until), f)
	return n + c.early.taken()
}

// drain reads all that is left, when no probe is armed any more and no thread can be in
// generated code. What a writer that was killed had reserved is given up then.
func (c *Core) drain(f func(*trace.Hit)) {
	if c.reader == nil {
		return
	}
	take := c.hits(f)
	c.reader.Drain(take)
	if len(c.reader.Stalls()) > 0 {
		c.reader.Reap(c.reader.Mark())
		c.reader.Drain(take)
	}
}

// Damage tells of records that belong to no event: given up with a writer that was
// killed in the middle of one, and places where the shared memory held what no writer
// writes.
func (c *Core) Damage() (dead, corrupt uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reader == nil {
		return 0, 0
	}
	s := c.reader.Stats()
	return s.Dead, s.Corrupt
}

// hits makes trace.Hits of ring records.
func (c *Core) hits(f func(*trace.Hit)) func(ring.Record) {
	w := c.t.Writer()
	views := c.views()
	stubs, _ := c.t.(target.Returner)
	var h trace.Hit
	return func(r ring.Record) {
		v := &views[r.Event]
		if v.event == nil {
			return
		}
		if v.event.hook {
			c.loaded = true
			return
		}
		h.Event, h.Unknown, h.Caller = &v.view, v.unknown, 0 // all else that a target's hits have is set for each
		h.Nanos, h.CPU, h.TID, h.Rec = c.clock.nanos(r.TSC, r.CPU), r.CPU, int(r.TID), r.Bytes
		off := ring.RecHeader
		switch {
		case w.Go != nil:
			h.GoID = binary.LittleEndian.Uint64(r.Bytes[off:])
			off += 8
		case w.Kernel != nil:
			h.Comm, h.Context, _ = c.tasks.Read(r.Bytes)
			off = amd64.KernelRecord
		}
		if v.view.Return {
			h.Caller = binary.LittleEndian.Uint64(r.Bytes[off:])
			if stubs != nil {
				h.Caller = stubs.Caller(h.Caller)
			}
		}
		v.event.read++
		f(&h)
	}
}

// view is an event as records of one number show it.
type view struct {
	event   *Event
	view    trace.Event
	unknown bool
}

// views gives them by number. They are made anew after an event came or moved.
func (c *Core) views() []view {
	if c.seen != nil {
		return c.seen
	}
	out := make([]view, len(c.events))
	for i, e := range c.events {
		if e == nil || e.Prog == nil {
			continue
		}
		v := view{event: e, view: trace.Event{
			Group: e.Group, Name: e.Name, Return: e.Def.Kind == event.Return,
			Addr: e.Place.Addr, Prog: e.Prog, ArgsOff: e.argsOffset(c.t.Writer()),
		}}
		out[i] = v
		if e.tail > 0 {
			v.unknown = true
			out[e.tail] = v
		}
	}
	c.seen = out
	return out
}

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
}

// Counts sums up what an event has counted so far.
func (c *Core) Counts(e *Event) Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts(e)
}

func (c *Core) counts(e *Event) Counts {
	if e.kept != nil {
		return *e.kept
	}
	n := Counts{Read: e.read, Unwound: uint64(e.unwound) + e.reaped, Active: uint64(e.active) + e.cut}
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
	defer c.mu.Unlock()
	if f == nil {
		f = func(*trace.Hit) {}
	}
	c.stopOptimizing()
	var live []*Event
	for _, e := range c.events {
		if e != nil && !e.ended && !slices.Contains(c.sharing, e) && (e.fn == nil || c.stubbed.walkers[e.fn.start] != e) {
			live = append(live, e)
		}
	}
	err := c.remove(live, c.classify)
	for try := 1; err != nil && !errors.Is(err, target.ErrGone) && try < addTries && c.remapped(); try++ {
		err = c.remove(live, c.classify) // without what was in objects that have gone
	}
	if len(c.stubbed.walkers) > 0 && err == nil {
		err = c.putBack()
	}
	if len(c.sharing) > 0 && err == nil { // no code is left that relies on them
		err = c.remove(c.sharing, nil)
	}
	if errors.Is(err, target.ErrGone) {
		err = nil
	}
	c.closeProbes(live, err != nil)
	c.early.add(c.uprobeHits(), time.Now())
	err = errors.Join(err, c.t.Close())
	c.drain(func(h *trace.Hit) {
		c.early.give(h.Nanos, f)
		f(h)
	})
	c.early.give(^uint64(0), f)
	return err
}

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
