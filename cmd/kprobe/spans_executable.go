package main

import (
	"fmt"
	"slices"
	"sync"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spans"
)

// spansOfAll makes the spans of all processes of an executable: each has a spanning of its own, which hands its spans to that of the command.
type spansOfAll struct {
	said   tellOnce
	offset func() int64 // what times become those of spans by: of all processes the same

	// Of the goroutine that takes the hits.
	of   map[*executableMember]*spanning
	made spans.Stats // by processes that have ended
	// What was wrong with hits of processes that have ended.
	damaged, unnamed uint64
}

// maxSaid bounds what is told of the probes of processes.
const maxSaid = 256

// ofAll has the run make the spans of all processes of an executable.
func (g *spanning) ofAll() {
	g.all = &spansOfAll{said: tellOnce{most: maxSaid}, offset: sync.OnceValue(unixOffset), of: map[*executableMember]*spanning{}}
	t := g.t
	t.define = func(_ tracee, defs []*event.Def) ([]*event.Def, error) {
		given := slices.Clone(defs[:0])
		for _, c := range g.calls {
			if c.set == "" { // a set may have functions that the program has not
				given = append(given, c.given)
			}
		}
		return given, nil
	}
	t.added = func(tracee) error { return g.open(nil) }
	t.eachAdd = g.addTo
	t.eachLeft = g.left
}

// addTo adds the probes to a process. Several goroutines call it at once, for different processes.
func (g *spanning) addTo(m *executableMember, add func([]*event.Def) error) error {
	s := &spanning{f: g.f, t: g.t, sample: g.sample, slower: g.slower, errors: g.errors, service: g.service, wait: g.wait, sets: g.sets, parent: g}
	s.f.of.pid = m.p.s.proc.PID()
	for _, c := range g.calls {
		one, given := *c, *c.given
		one.given = &given
		s.calls = append(s.calls, &one)
	}
	defs, err := s.define(&m.p, nil)
	if err == nil {
		err = add(defs)
	}
	if err == nil {
		err = s.prepare(&m.p)
	}
	if err != nil {
		return err
	}
	s.is = &otlp.Resource{Attrs: s.resource(m.p.core)}
	m.spans = s
	return nil
}

// hitOf takes a hit of one of several processes.
func (g *spanning) hitOf(h *hit.Hit) {
	m := hit.From(h).(*executableMember)
	s := m.spans
	g.all.of[m] = s
	s.hit(h)
	if m.lossy.Load() {
		m.lossy.Store(false)
		s.lost()
	}
}

// left hands over what is held of a process that has been left, when all its hits have been taken.
func (g *spanning) left(m *executableMember) {
	s := m.spans
	delete(g.all.of, m)
	if m.lossy.Load() {
		s.lost()
	}
	s.finish()
	a := g.all
	a.made = sumSpans(a.made, s.stats())
	a.damaged, a.unnamed = a.damaged+s.damaged, a.unnamed+s.unnamed
	m.spans = nil
}

// lostOf takes that hits were lost: of the processes that say so. If none does they were lost on their way here, and may be of any.
func (g *spanning) lostOf() {
	told := false
	for m, s := range g.all.of {
		if m.lossy.Swap(false) {
			s.lost()
			told = true
		}
	}
	if told {
		return
	}
	for _, s := range g.all.of {
		s.lost()
	}
}

// say tells something about the probes: of many processes once.
func (g *spanning) say(format string, args ...any) {
	text := fmt.Sprintf("kprobe: "+format+"\n", args...)
	tell := func() { fmt.Fprint(g.f.con.stderr, text) }
	if g.parent == nil {
		tell()
		return
	}
	g.parent.all.said.once(text, tell)
}

// sumSpans adds up what has become of calls.
func sumSpans(a, b spans.Stats) spans.Stats {
	a.Spans += b.Spans
	a.Errors += b.Errors
	a.Left += b.Left
	a.Unsampled += b.Unsampled
	a.Unjoined += b.Unjoined
	a.Unfollowed += b.Unfollowed
	a.Unread += b.Unread
	a.Active += b.Active
	a.Split += b.Split
	return a
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
