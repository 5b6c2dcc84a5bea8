package main

import (
	"sync"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanmaker"
)

// maxSaid bounds what is told of the probes of processes.
const maxSaid = 256

// ofAll has the run make the spans of all processes of an executable.
func (g *spanning) ofAll() {
	g.all = &spansOfAll{said: tellOnce{most: maxSaid}, offset: sync.OnceValue(spanmaker.UnixOffset), of: map[*executableMember]*spanmaker.Maker{}}
	t := g.t
	t.define = func(tracee, []*event.Def) ([]*event.Def, error) { return g.given(), nil }
	t.added = func(tracee) error { return g.open(nil) }
	t.eachAdd = g.addTo
	t.eachLeft = g.left
}

// addTo adds the probes to a process. Several goroutines call it at once, for different processes.
func (g *spanning) addTo(m *executableMember, add func([]*event.Def) error) error {
	var calls []*spanmaker.Call
	for _, c := range g.calls {
		calls = append(calls, c.Clone())
	}
	o := g.o
	o.Offset, o.Begun, o.Tell = g.all.offset, g.out.unix, g.say
	is := g.resource(m.p.core, m.p.s.proc.PID())
	o.Emit = func(span *otlp.Span) {
		span.Of = is
		g.emit(span)
	}
	s := g.newMaker(m.p.core, calls, m.p.s.names, &o)
	defs, err := s.Define()
	if err == nil {
		err = add(defs)
	}
	if err == nil {
		err = s.Prepare(engineEvents(m.p.evs))
	}
	if err != nil {
		return err
	}
	m.spans = s
	return nil
}

// hitOf takes a hit of one of several processes.
func (g *spanning) hitOf(h *hit.Hit) {
	m := hit.From(h).(*executableMember)
	s := m.spans
	g.all.of[m] = s
	s.Hit(h)
	if m.lossy.Load() {
		m.lossy.Store(false)
		s.Lost()
	}
}

// left hands over what is held of a process that has been left, when all its hits have been taken.
func (g *spanning) left(m *executableMember) {
	s := m.spans
	delete(g.all.of, m)
	if m.lossy.Load() {
		s.Lost()
	}
	s.Finish()
	g.all.made.Add(s.Stats())
	m.spans = nil
}

// lostOf takes that hits were lost: of the processes that say so. If none does they were lost on their way here, and may be of any.
func (g *spanning) lostOf() {
	told := false
	for m, s := range g.all.of {
		if m.lossy.Swap(false) {
			s.Lost()
			told = true
		}
	}
	if told {
		return
	}
	for _, s := range g.all.of {
		s.Lost()
	}
}

// losing notes that hits of a process were lost, before it hands that on.
func (m *executableMember) losing(f func(*event.Def, int, uint64)) func(*event.Def, int, uint64) {
	return func(d *event.Def, cpu int, hits uint64) {
		m.lossy.Store(true)
		f(d, cpu, hits)
	}
}

// loseAll tells of all that the process's ring has lost. Precondition: m.mu is held.
func (m *executableMember) loseAll() {
	engine.Of(m.p.core).Losses(true, m.losing(m.x.t.hits.lose))
}
