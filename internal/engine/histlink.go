package engine

import (
	"fmt"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// linkHists has generated code make the histograms of new events that refer to each other, where it can.
func (c *Core) linkHists(evs []*Event) error {
	var all []*fetch.HistEvent
	of := map[*fetch.HistEvent]*Event{}
	for _, e := range evs {
		if e.Def.Hist == nil || e.h != nil {
			continue
		}
		h := &fetch.HistEvent{Group: e.Group, Name: e.Name, Def: e.Def.Hist}
		if c.countsAtHit(e) && !e.oneOf && !e.force.Held() && !e.watches() && c.onlyOne(e) {
			h.Prog = e.Prog
		}
		all, of[h] = append(all, h), e
	}
	fetch.LinkHists(all)
	l := &histLink{tables: map[*Event]*arch.HistTable{}}
	for _, h := range all {
		e := of[h]
		if !h.Linked {
			continue
		}
		if e.work.Hist = nil; h.Hist == nil {
			continue
		}
		t := &arch.HistTable{Hist: h.Hist, Code: native.HistCode()}
		if h.Of != nil {
			t.Of = l.tables[of[h.Of]]
			tick, err := c.records.Tick()
			if err != nil {
				return fmt.Errorf("%s: the length of a tick of the target's clock is not known: %w", e.Name, err)
			}
			e.work.Tick = tick
		}
		for _, tr := range h.Traces {
			t.Traces = append(t.Traces, l.trace(tr, c.traced[tr.Of]))
		}
		e.work.Hist, e.linked, l.tables[e] = t, l, t
		l.events = append(l.events, e)
	}
	return nil
}

// onlyOne says whether no other event has the name of one: they would share a histogram.
func (c *Core) onlyOne(e *Event) bool {
	same := func(o *Event) bool { return o != nil && o != e && !o.ended && o.sameName(e) }
	return !slices.ContainsFunc(c.events, same) && !slices.ContainsFunc(c.batch, same)
}

// trace gives the table of a synthetic event's histogram, for one of the events that make it. have is the memory that those of earlier
// additions count in; nil: there are none.
func (l *histLink) trace(tr fetch.HistTrace, have *histogram) *arch.HistTable {
	t := &arch.HistTable{Hist: tr.Hist}
	i := slices.IndexFunc(l.traced, func(o *tracedHist) bool { return o.of == tr.Of })
	if i < 0 {
		i = len(l.traced)
		l.traced = append(l.traced, &tracedHist{of: tr.Of, histogram: have})
	}
	l.traced[i].tables = append(l.traced[i].tables, t)
	return t
}

// tracedMemory gives a table of a synthetic event's histogram its memory: all have the same.
func (c *Core) tracedMemory(l *histLink, t *arch.HistTable) (err error) {
	for _, tr := range l.traced {
		if !slices.Contains(tr.tables, t) {
			continue
		}
		if tr.histogram == nil {
			tr.histogram, err = c.newHistogram(t)
		}
		t.Addr = tr.addr
	}
	return err
}

// admitLinked notes that the code of events stands.
func (c *Core) admitLinked(evs []*Event) {
	for _, e := range evs {
		if e.linked == nil {
			continue
		}
		e.linked.stands = true
		for _, tr := range e.linked.traced {
			if c.traced == nil {
				c.traced = map[*event.Synthetic]*histogram{}
			}
			c.traced[tr.of] = tr.histogram
		}
	}
}

// unlink has whoever reads the records make an event's histogram, and those that refer to each other with it: a probe that the kernel holds
// has records. Where code has counted already it stays: an object that came again took no jump any more.
func (e *Event) unlink() {
	if e.linked == nil || e.linked.stands {
		return
	}
	for _, o := range e.linked.events {
		o.work.Hist, o.hist, o.linked, o.remake = nil, nil, nil, true
	}
}

// remakeUnlinked makes the code of changes anew which counts in histograms that whoever reads the records is to make, or tells of
// calls of events that are not armed. It gives those of which that failed.
func (ed *editor) remakeUnlinked(cs []*functionChange) (failed []*functionChange) {
	for _, ch := range cs {
		again := false
		for _, e := range ch.f.events {
			again, e.remake = again || e.remake || e.leaving != nil && e.leaving.outdated(), false
		}
		if !again {
			continue
		}
		ed.release(ch.Add)
		if ed.remake(ch) != nil {
			failed = append(failed, ch)
		}
	}
	return failed
}

// Traced gives what generated code has counted of a synthetic event, which actions of events' histograms make (event.HistAction.Traced).
// ok is false if it does not count: the events have records. It may be called after Close.
func (c *Core) Traced(of *event.Synthetic) (entries []fetch.HistEntry, dropped uint64, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.traced[of]; h != nil {
		entries, dropped, _, err = h.read(of.Name)
		return entries, dropped, true, err
	}
	return nil, 0, false, nil
}

// NewHistogram makes an empty histogram of an event, beside those that it refers to where generated code makes them.
func (c *Core) NewHistogram(e *Event) (*hit.Histogram, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.linked == nil {
		return hit.NewHistogram(e.Def.Hist, e.Prog)
	}
	set := hit.NewHistograms()
	for _, tr := range e.linked.traced {
		set.Synthetic(tr.of)
	}
	for _, o := range e.linked.events {
		set.Event(o.Group, o.Name, o.Prog)
	}
	var h *hit.Histogram
	for _, o := range e.linked.events {
		of, err := set.Add(o.Group, o.Name, o.Def.Hist)
		if err != nil {
			return nil, err
		}
		if o == e {
			h = of
		}
	}
	return h, nil
}
