package engine

import (
	"fmt"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/fetch"
)

// compileHist has generated code make an event's histogram, where it can: else whoever reads the records has to.
func (c *Core) compileHist(e *Event) {
	e.work.Hist = nil
	if e.linked != nil { // its object has come again
		e.work.Hist = e.linked.tables[e]
		return
	}
	if !c.countsAtHit(e) {
		return
	}
	callers := event.HistCallers
	if e.Def.Kind != event.Return {
		callers-- // the probed instruction comes before them
	}
	if h := e.Prog.Hist(e.Def.Hist, callers); h != nil {
		e.work.Hist = &arch.HistTable{Hist: h, Code: native.HistCode()}
	}
}

// countsAtHit says whether generated code could count an event's hits.
func (c *Core) countsAtHit(e *Event) bool {
	return c.can.Sharing != nil && c.t.CodegenEnv().Kernel == nil && (e.filter == nil || e.work.Filter != nil)
}

// histMemory gives events' histograms their memory. One that has it keeps it: its object has come again.
func (c *Core) histMemory(evs []*Event) error {
	for _, e := range evs {
		if e.held != nil {
			e.unlink()
		}
	}
	for _, e := range evs {
		if e.gone || e.work.Hist == nil {
			continue
		}
		if e.hist == nil {
			h, err := c.newHistogram(e.work.Hist)
			for i := 0; err == nil && i < len(e.work.Hist.Traces); i++ {
				err = c.tracedMemory(e.linked, e.work.Hist.Traces[i])
			}
			if err != nil {
				return e.refused(fmt.Errorf("histogram: %w", err))
			}
			e.hist = h
		}
		e.work.Hist.Addr = e.hist.addr
	}
	return nil
}

// newHistogram makes the memory of a histogram.
func (c *Core) newHistogram(t *arch.HistTable) (*histogram, error) {
	h := &histogram{hist: t.Hist, cpus: c.t.CodegenEnv().Layout.CPUs}
	var err error
	h.addr, h.r, err = c.can.Sharing.ShareMemory("histograms", native.HistBytes(h.hist, h.cpus))
	t.Addr = h.addr
	return h, err
}

// Histogram gives what generated code has counted of an event with a histogram (event.Def.Hist), and the hits for which there was
// no room. ok is false if it does not count: the event has records. It may be called after Close.
func (c *Core) Histogram(e *Event) (entries []fetch.HistEntry, dropped uint64, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, dropped, _, ok, err = e.histogram()
	return entries, dropped, ok && (e.held == nil || len(entries) > 0), err
}

// Program is how an event's arguments are recorded; nil while its object has not come yet.
func (c *Core) Program(e *Event) *fetch.Program {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.Prog
}

func (e *Event) histogram() (entries []fetch.HistEntry, dropped, unset uint64, ok bool, err error) {
	if e.hist == nil {
		return nil, 0, 0, false, nil
	}
	entries, dropped, unset, err = e.hist.read(e.Name)
	if e.hist.hist.Callers() > 0 && e.Def.Kind != event.Return {
		for i := range entries {
			at := fetch.StackFrame{PC: e.Place.Addr, Interrupted: true}
			entries[i].Callers = append([]fetch.StackFrame{at}, entries[i].Callers...)
		}
	}
	return entries, dropped, unset, true, err
}

// read reads what has been counted in the histogram of the event of a name.
func (h *histogram) read(name string) (entries []fetch.HistEntry, dropped, unset uint64, err error) {
	mem := make([]byte, native.HistBytes(h.hist, h.cpus))
	if _, err := h.r.ReadAt(mem, 0); err != nil {
		return nil, 0, 0, fmt.Errorf("%s: histogram: %w", name, err)
	}
	entries, dropped, unset = native.ReadHist(mem, h.hist, h.cpus)
	return entries, dropped, unset, nil
}
