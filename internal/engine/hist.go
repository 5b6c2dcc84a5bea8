package engine

import (
	"fmt"
	"io"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/fetch"
)

// compileHist has generated code make an event's histogram, where it can: else whoever reads the records has to.
func (c *Core) compileHist(e *Event) {
	e.work.Hist = nil
	if c.can.Sharing == nil || c.t.CodegenEnv().Kernel != nil || e.filter != nil && e.work.Filter == nil {
		return
	}
	callers := event.HistCallers
	if e.Def.Kind != event.Return {
		callers-- // the probed instruction comes before them
	}
	if h := e.Prog.Hist(e.Def.Hist, callers); h != nil {
		e.work.Hist = &arch.HistTable{Hist: h}
	}
}

// histMemory gives events' histograms their memory. One that has it keeps it: its object has come again.
func (c *Core) histMemory(evs []*Event) error {
	for _, e := range evs {
		if e.gone || e.work.Hist == nil {
			continue
		}
		if e.hist == nil {
			at, r, err := c.can.Sharing.ShareMemory(native.HistBytes(e.work.Hist.Hist, c.t.CodegenEnv().Layout.CPUs))
			if err != nil {
				return e.refused(fmt.Errorf("histogram: %w", err))
			}
			e.hist = &histogram{addr: at, r: r, cpus: c.t.CodegenEnv().Layout.CPUs}
		}
		e.work.Hist.Addr = e.hist.addr
	}
	return nil
}

// histogram is the memory in which generated code counts the hits of an event.
type histogram struct {
	addr uint64
	r    io.ReaderAt
	cpus int
}

// Histogram gives what generated code has counted of an event with a histogram (event.Def.Hist), and the hits for which there was
// no room. ok is false if it does not count: the event has records. It may be called after Close.
func (c *Core) Histogram(e *Event) (entries []fetch.HistEntry, dropped uint64, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, dropped, ok, err = e.histogram()
	return entries, dropped, ok && (e.held == nil || len(entries) > 0), err
}

// Program is how an event's arguments are recorded; nil while its object has not come yet.
func (c *Core) Program(e *Event) *fetch.Program {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.Prog
}

func (e *Event) histogram() (entries []fetch.HistEntry, dropped uint64, ok bool, err error) {
	if e.hist == nil {
		return nil, 0, false, nil
	}
	mem := make([]byte, native.HistBytes(e.work.Hist.Hist, e.hist.cpus))
	if _, err := e.hist.r.ReadAt(mem, 0); err != nil {
		return nil, 0, true, fmt.Errorf("%s: histogram: %w", e.Name, err)
	}
	entries, dropped = native.ReadHist(mem, e.work.Hist.Hist, e.hist.cpus)
	if e.work.Hist.Hist.Callers() > 0 && e.Def.Kind != event.Return {
		for i := range entries {
			at := fetch.StackFrame{PC: e.Place.Addr, Interrupted: true}
			entries[i].Callers = append([]fetch.StackFrame{at}, entries[i].Callers...)
		}
	}
	return entries, dropped, true, nil
}
