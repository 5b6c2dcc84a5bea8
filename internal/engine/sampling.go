package engine

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
)

// Sampling keeps one trace in so many: which, is decided at the entries of its definitions' functions (arch.Sample).
type Sampling struct {
	Every uint64 // at least 1: then calls are all recorded, and of goroutines only what happens to those that are in one
	Roles map[*event.Def]arch.SampleRole
	// Always are definitions of entries which begin traces that are all kept.
	Always map[*event.Def]bool

	table  uint64   // in the target; 0: none is needed yet
	events []*Event // that decide
	off    error    // why none of its events does; nil: they do
}

// samplings are those of a Core (Core.samplings).
type samplings struct {
	c    *Core
	all  []*Sampling
	free []uint64 // tables that nobody uses
}

// CanSample says why traces of the target can not be chosen at the hit; nil: they can.
func (c *Core) CanSample() error {
	if c.can.Unwinder == nil || c.t.CodegenEnv().Kernel != nil {
		return errno.Errorf(unix.EOPNOTSUPP, "the target has no memory for a table of calls")
	}
	return nil
}

// Sample has the events of a sampling's definitions, which are to be added next, choose traces. Precondition: CanSample has given nil.
func (c *Core) Sample(s *Sampling) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ss, ok := c.samplings.(*samplings)
	if !ok {
		ss = &samplings{c: c}
		c.samplings, c.giveSamples = ss, ss.give
	}
	ss.all = slices.DeleteFunc(ss.all, func(o *Sampling) bool {
		if slices.ContainsFunc(o.events, func(e *Event) bool { return !e.ended }) {
			return false
		}
		if o.table != 0 {
			ss.free = append(ss.free, o.table)
		}
		return true
	})
	ss.all = append(ss.all, s)
}

// Samples says why the events of a sampling, which have been added, do not choose traces; nil: they do.
func (c *Core) Samples(s *Sampling) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.off
}

func (s *Sampling) has(e *Event) bool {
	_, ok := s.Roles[e.Given]
	return ok
}

// Unsampled counts the calls whose traces a sampling has not kept, when they were entered; where it keeps all, those of which nobody knows what is
// created in them.
func (c *Core) Unsampled(s *Sampling) (n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range s.events {
		n += c.unsampled(e)
	}
	return n
}

// unsampled counts the entries of an event whose calls' traces are not kept.
func (c *Core) unsampled(e *Event) uint64 {
	switch {
	case e.work.Sample == nil || e.work.Sample.Role != arch.SampleEnter || c.t.Ring() == nil:
		return 0
	case c.events[e.ID] != e: // its number may be another's
		return e.unsampled
	}
	return c.t.Ring().Sum(e.ID).Unwound // ring.CtrUnsampled
}

// give has new events choose traces, before their code is made. Of several at one end of a function one decides, and the others only
// count.
func (ss *samplings) give(evs []*Event) error {
	for _, s := range ss.all {
		if err := s.check(evs); err != nil {
			return err
		}
		for _, e := range evs {
			role, ok := s.Roles[e.Given]
			if !ok || s.off != nil || e.gone || e.held != nil {
				continue
			}
			if !s.decides(e, evs) {
				e.work.Count = true
				continue
			}
			if err := ss.table(s); err != nil {
				if s.Every > 1 {
					return err
				}
				s.off = err
				continue
			}
			e.work.Sample = &arch.Sample{Role: role, Table: s.table, Every: s.Every, Func: e.fn.Start, Always: s.Always[e.Given], Paired: s.paired(e, evs), Code: native.SampleCode()}
			if !slices.Contains(s.events, e) { // else its object has come again
				s.events = append(s.events, e)
			}
		}
	}
	return nil
}

// check turns a sampling off one of whose events has a filter that only a reader of records can run: a call that does not pass must not
// decide. One that has decided already can not be turned off.
func (s *Sampling) check(evs []*Event) error {
	for _, e := range evs {
		if !s.has(e) || e.gone || e.filter == nil || e.work.Filter != nil {
			continue
		}
		err := e.refused(errno.Errorf(unix.EOPNOTSUPP, "filter %q can not run at the hit: %s", e.Def.Filter, e.filter.NotInCode(e.Prog)))
		if s.table != 0 {
			return err
		}
		s.off = err
	}
	return nil
}

// decides says whether an event does for its end of a function: the first whose definition names it alone, else the first of a pattern.
func (s *Sampling) decides(e *Event, evs []*Event) bool {
	var first *Event
	for _, o := range evs {
		if !s.has(o) || o.gone || o.fn != e.fn || s.Roles[o.Given] != s.Roles[e.Given] {
			continue
		}
		if first == nil || first.Given.Place.Glob && !o.Given.Place.Glob {
			first = o
		}
	}
	return first == e
}

// paired says whether the entries of a return event's function are decided about by an event before it (arch.Sample.Paired).
func (s *Sampling) paired(e *Event, evs []*Event) bool {
	for _, o := range evs {
		if o == e {
			break
		}
		if s.has(o) && !o.gone && o.fn == e.fn && s.Roles[o.Given] == arch.SampleEnter && o.filter == nil && o.budget == nil && s.decides(o, evs) {
			return s.Roles[e.Given] == arch.SampleLeave
		}
	}
	return false
}

// table gives a sampling its table, an empty one. All of its pages are there then: no hit waits for one.
func (ss *samplings) table(s *Sampling) error {
	if s.table != 0 {
		return nil
	}
	if n := len(ss.free); n == 0 {
		at, err := ss.c.can.Unwinder.NewTable(native.SampleBytes)
		if err != nil {
			return fmt.Errorf("table of calls: %w", err)
		}
		ss.free = append(ss.free, at)
	}
	n := len(ss.free) - 1
	at := ss.free[n]
	if err := ss.c.can.Unwinder.WriteTable(at, make([]byte, native.SampleBytes)); err != nil {
		return fmt.Errorf("table of calls: %w", err)
	}
	s.table, ss.free = at, ss.free[:n]
	return nil
}
