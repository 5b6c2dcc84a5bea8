package engine

import (
	"slices"
	"sync"
	"time"
)

// Stats tells of a Core as a whole: see kprobes.Stats.
type Stats struct {
	Probes          int
	Queued, Unarmed int
	Longest         time.Duration
	Postponed       uint64
	Why             []string
	Dead, Corrupt   uint64
	Pending         bool
	Late            uint64
}

// Stats tells what was so when the last change ended. It takes no lock: a change may have to wait for a thread.
// After Close it tells of probes what was so before.
func (c *Core) Stats() Stats {
	s := Stats{Pending: c.records.Waits(), Late: c.Late()}
	s.Dead, s.Corrupt = c.records.Damage()
	p := c.published.Load()
	if p == nil {
		return s
	}
	s.Probes, s.Queued, s.Unarmed, s.Postponed = p.probes, p.queued, p.unarmed, p.postponed
	if p.functions == 0 {
		return s
	}
	s.Longest, s.Why = time.Since(p.since), slices.Clone(p.why())
	if !p.until.IsZero() {
		s.Longest = p.until.Sub(p.since)
	}
	return s
}

// Late is Stats.Late.
func (c *Core) Late() uint64 { return c.late.Load() }

// unlock ends a change: Stats tells what is so now, and others may change something.
func (c *Core) unlock() {
	c.publish()
	c.mu.Unlock()
}

// locker is the lock of a Core for who knows no Core.
type locker struct{ c *Core }

func (l locker) Lock()   { l.c.mu.Lock() }
func (l locker) Unlock() { l.c.unlock() }

// publish has Stats tell what is so now. Precondition: mu is held.
func (c *Core) publish() {
	old := c.published.Load()
	switch {
	case c.closing:
		return
	case old == nil, c.queue.Len()+old.functions > 0, old.probes != c.registered, old.postponed != c.postponed:
		c.published.Store(c.snapshot())
	}
}

// snapshot makes what Stats tells. Precondition: mu is held.
func (c *Core) snapshot() *snapshot {
	s := &snapshot{probes: c.registered, postponed: c.postponed, functions: c.queue.Len()}
	if s.functions == 0 {
		return s
	}
	type waiting struct {
		name string
		why  error
	}
	ws := make([]waiting, 0, s.functions)
	for _, f := range c.queue.Functions(byStart) {
		q := c.queue.Get(f)
		ws = append(ws, waiting{f.Name, q.Why})
		if s.since.IsZero() || q.Since.Before(s.since) {
			s.since = q.Since
		}
		for _, e := range f.events {
			if e.internalProbe || e.gone || e.idle() {
				continue
			}
			s.queued++
			if e.form.tactic == "" {
				s.unarmed++
			}
		}
	}
	s.why = sync.OnceValue(func() []string {
		out := make([]string, len(ws))
		for i, w := range ws {
			out[i] = w.name + ": " + plainly(w.why)
		}
		return out
	})
	return s
}

// admit counts events that have been registered.
func (c *Core) admit(evs []*Event) {
	for _, e := range evs {
		if !e.internalProbe {
			e.registered = true
			c.registered++
		}
	}
}

// discharge notes that an event is not registered any more.
func (c *Core) discharge(e *Event) {
	if e.ended = true; e.registered {
		e.registered = false
		c.registered--
	}
}
