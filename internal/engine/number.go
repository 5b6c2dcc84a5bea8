package engine

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/ring"
)

// number gives the events their numbers in the ring, and publishes how their records are read.
func (c *Core) number(evs []*Event) error {
	if err := c.fit(evs); err != nil {
		return err
	}
	if err := c.records.Open(); err != nil {
		return err
	}
	r := c.t.Ring()
	had := len(c.events)
	for _, e := range evs {
		c.numberOne(e)
	}
	if n := len(c.events); n > r.Layout.Events {
		c.unnumber(evs, had)
		return errno.Errorf(unix.ENOSPC, "events %d: the ring has room for %d", n, r.Layout.Events)
	}
	if err := r.PrepareEvents(len(c.events)); err != nil {
		return err
	}
	for _, e := range evs {
		if err := c.show(e); err != nil {
			return err
		}
	}
	return nil
}

// NewLog gives a number for records that code of a user of the target writes itself, of any length: they are given out as hits of a definition, and are
// nobody's to decode. take, if not nil, is given them whenever somebody reads records; it must not call the Core. The target is prepared with it. Errors are those
// of Register.
func (c *Core) NewLog(d *event.Def, take func(*hit.Hit)) (id int, err error) {
	c.mu.Lock()
	defer c.unlock()
	if err := c.recoverTarget(); err != nil {
		return 0, err
	}
	if err := c.t.Prepare(); err != nil { // its records rely on nothing that is probed for events
		return 0, err
	}
	if err := c.records.Open(); err != nil {
		return 0, err
	}
	r := c.t.Ring()
	if id = len(c.events); id >= r.Layout.Events {
		return 0, errno.Errorf(unix.ENOSPC, "events %d: the ring has room for %d", id+1, r.Layout.Events)
	}
	if err := r.PrepareEvents(id + 1); err != nil {
		return 0, err
	}
	c.events = append(c.events, nil)
	off := c.logOffset()
	return id, c.records.Show(id, off, ring.MaxRecord, &records.View{Event: hit.Event{Def: d, Name: d.Name, ArgsOff: off}, Read: new(atomic.Uint64), Take: take})
}

// logOffset is where the words of such a record begin.
func (c *Core) logOffset() int {
	switch w := c.t.CodegenEnv(); {
	case w.Kernel != nil:
		return native.KernelRecord
	case w.Go != nil:
		return ring.RecHeader + 8
	}
	return ring.RecHeader
}

// fit says why more events would exceed Options.MaxEvents. Those of the engine's own do not count.
func (c *Core) fit(more []*Event) error {
	if c.most == 0 {
		return nil
	}
	n := c.registered
	for _, e := range more {
		if !e.internalProbe {
			n++
		}
	}
	if n > c.most {
		return errno.Errorf(unix.ENOSPC, "events %d: at most %d are allowed (MaxEvents): remove some first", n, c.most)
	}
	return nil
}

// numberOne gives an event the next number. A probe gets that of one that was unregistered
// when the ring has no more.
func (c *Core) numberOne(e *Event) {
	e.seq = c.seq
	c.seq++
	if e.tail != 0 && e.left == 0 && len(c.events) >= c.t.Ring().Layout.Events {
		if id, ok := c.usedNumber(); ok {
			e.ID, e.work.Event = id, id
			c.events[id] = e
			return
		}
	}
	e.ID, e.work.Event = len(c.events), len(c.events)
	c.events = append(c.events, e)
	c.numberTail(e)
}

// unnumber takes numbers back that were given last; the first had are older ones, which were
// given anew.
func (c *Core) unnumber(evs []*Event, had int) {
	c.events = c.events[:had]
	for _, e := range evs {
		if e.ID < had && c.events[e.ID] == e {
			c.events[e.ID] = nil
			c.numbers.Free(e.ID)
		}
	}
}

// numberTail gives the records of exits whose value is not known their own number, and those of calls that were left.
func (c *Core) numberTail(e *Event) {
	if e.tail == 0 {
		e.tail = len(c.events)
		c.events = append(c.events, nil)
	}
	if e.left < 0 {
		e.left = len(c.events)
		c.events = append(c.events, nil)
	}
}

// show publishes how records of an event that has its numbers are to be read.
func (c *Core) show(e *Event) error {
	if e.Prog == nil {
		return nil
	}
	w := c.t.CodegenEnv()
	lo, hi := e.sizes(w)
	for _, id := range e.numbers() {
		v := &records.View{Unknown: id != e.ID, Left: id == e.left && id != e.ID, Read: &e.read, Waits: e.internalProbe, Event: hit.Event{
			Def: e.Given, Group: e.Group, Name: e.Name, Return: e.Def.Kind == event.Return,
			Addr: e.Place.Addr, Prog: e.Prog, ArgsOff: e.argsOffset(w),
		}, Filter: e.filter, InCode: e.work.Filter != nil, Filtered: &e.failed, Counts: e.work.CountPassing}
		if err := c.records.Show(id, lo, hi, v); err != nil {
			return err
		}
	}
	return nil
}

// argsOffset is where the arguments start in the event's records.
func (e *Event) argsOffset(w *arch.CodegenEnv) int {
	n := ring.RecHeader
	switch {
	case w.Go != nil:
		n += 8
	case w.Kernel != nil:
		n = native.KernelRecord
	}
	if e.Def.Kind == event.Return {
		n += 8
	}
	return n
}

// sizes gives the smallest and largest record of the event, in bytes.
func (e *Event) sizes(w *arch.CodegenEnv) (lo, hi int) {
	lo = e.argsOffset(w) + e.Prog.Fixed
	if !e.Prog.Dynamic {
		return lo, lo
	}
	return lo, ring.MaxRecord
}

// usedNumber gives the number of an event that is gone; false: there is none that may be used again.
func (c *Core) usedNumber() (id int, ok bool) {
	c.reclaimer.Vacate()
	if id, ok = c.numbers.Take(); ok {
		c.t.Ring().ClearCounters(id)
		c.records.Forget(id)
	}
	return id, ok
}

// recycle keeps what a removed event has counted, before its number is used again.
func (c *Core) recycle(id int) {
	e := c.events[id]
	n := c.counts(e)
	e.kept = &n
	if e.work.Sample != nil {
		e.unsampled = c.t.Ring().Sum(e.ID).Unwound
	}
	c.events[id] = nil
}
