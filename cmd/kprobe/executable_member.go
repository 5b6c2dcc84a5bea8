package main

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/target/process"
)

// poll reads the process's ring, and says whether a thread of it waits for Sync.
func (m *executableMember) poll() (waits bool) {
	if !m.mu.TryRLock() {
		return false // it is being left, which reads the rest
	}
	defer m.mu.RUnlock()
	if m.left {
		return false
	}
	m.p.Poll(m.take)
	return m.p.Pending()
}

// take keeps a hit until those of all processes have been read.
func (m *executableMember) take(h *hit.Hit) { m.x.hits.add(h, m) }

// waits says whether a thread of the process waits for Sync.
func (m *executableMember) waits() bool { return m.p.Pending() }

// counts are those of the events, in their order.
func (m *executableMember) counts() []kprobes.Counts {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.left {
		return m.final
	}
	return m.counted()
}

func (m *executableMember) counted() []kprobes.Counts {
	out := make([]kprobes.Counts, len(m.p.evs))
	for i, e := range m.p.evs {
		out[i] = m.p.core.Counts(e)
	}
	return out
}

func (m *executableMember) losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	if !m.mu.TryRLock() {
		return
	}
	defer m.mu.RUnlock()
	if !m.left {
		m.p.Losses(all, m.losing(f))
	}
}

// exceeded tells of events that their budgets have disabled since it was called last.
func (m *executableMember) exceeded(tell func(name string, why error)) {
	if !m.mu.TryRLock() {
		return
	}
	defer m.mu.RUnlock()
	if !m.left {
		m.p.Exceeded(tell)
	}
}

// sync follows what the process maps, and tells what goes wrong. If it executes another program the set is told.
func (m *executableMember) sync() {
	if !m.mu.TryRLock() {
		return
	}
	var ended bool
	var err error
	if !m.left {
		ended, err = m.p.Sync()
	}
	m.mu.RUnlock()
	if ended && err != nil { // it has not ended
		m.x.set.Replaced(m)
		return
	}
	if err != nil && !errors.Is(err, process.ErrNoProcess) && !errors.Is(err, process.ErrExec) {
		m.x.tell(m.p.s.proc.PID(), err)
	}
}

// Leave implements executables.Member.
func (m *executableMember) Leave() (children []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.p.Leave(m.take)
	m.loseAll()
	errs := slices.DeleteFunc([]error{err, m.p.Close()}, func(err error) bool { return err == nil })
	m.final = m.counted()
	x := m.x
	x.mu.Lock()
	x.sums.add(m, errs)
	x.members = slices.DeleteFunc(x.members, func(o *executableMember) bool { return o == m })
	x.mu.Unlock()
	m.left = true
	if m.spans != nil {
		m.spans.Count()
	}
	x.hits.end(m)
	if err := m.p.s.target.Discard(); err != nil {
		x.tell(m.p.s.proc.PID(), err)
	}
	return m.p.s.target.Children()
}

// add keeps a copy of a hit.
func (q *mergedHits) add(h *hit.Hit, m *executableMember) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.full.add(h)
	hit.SetFrom(&q.full.hits[len(q.full.hits)-1], m)
}

// end notes that no hit of a process follows.
func (q *mergedHits) end(m *executableMember) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.left = append(q.left, m)
}

// give hands over what there is, and gives the number, and the processes of which nothing follows.
func (q *mergedHits) give(f func(*hit.Hit)) (n int, left []*executableMember) {
	q.mu.Lock()
	b, left := q.full, q.left
	q.full, q.left = batch{}, nil
	q.mu.Unlock()
	slices.SortStableFunc(b.hits, func(a, b hit.Hit) int {
		switch {
		case a.Nanos < b.Nanos:
			return -1
		case a.Nanos > b.Nanos:
			return 1
		}
		return 0
	})
	for i := range b.hits {
		f(&b.hits[i])
	}
	return len(b.hits), left
}

// namedByProcess has a hit shown with the names of its process.
func (l *lines) namedByProcess(show func(*hit.Hit)) func(*hit.Hit) {
	return func(h *hit.Hit) {
		l.print.Names = hit.From(h).(*executableMember).p.s.names
		show(h)
	}
}
