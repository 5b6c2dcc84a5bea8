package main

import (
	"errors"
	"sync"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/target"
)

// pending are hits for a user that takes them when it polls, so that others do not wait for what it does with them.
type pending struct {
	mu   sync.Mutex
	full batch // nobody has taken them

	giving sync.Mutex
	given  batch // what was taken last, whose room is used again
}

// add adds a copy of a hit.
func (p *pending) add(h *hit.Hit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full.add(h)
}

// give gives the hits out, and returns how many.
func (p *pending) give(f func(*hit.Hit)) int {
	p.giving.Lock()
	defer p.giving.Unlock()
	p.given.clear()
	p.mu.Lock()
	p.full, p.given = p.given, p.full
	p.mu.Unlock()
	p.given.each(f, nil)
	n := len(p.given.hits)
	if cap(p.given.hits) > pendingRoom {
		p.given = batch{}
	}
	return n
}

// pendingRoom is the most hits for which the room is kept.
const pendingRoom = 1 << 17

// mountUser is what the files of a mount know of a target that others use too.
type mountUser struct {
	u    *user
	hits *pending
}

// User implements trace.Shared.
func (m mountUser) User() uint32 { return m.u.id }

// Poll implements trace.Shared. What takes long with hits works on copies, so that others do not wait for it.
func (m mountUser) Poll(f func(*hit.Hit), fast bool) int {
	if !fast {
		m.u.Poll(nil)
		return m.hits.give(f)
	}
	h := m.u.h
	h.pollMu.Lock()
	defer h.pollMu.Unlock()
	n := m.hits.give(f) // what others have read comes first
	m.u.n.Store(0)
	m.u.asks = f
	defer func() { m.u.asks = nil }()
	h.read()
	return n + int(m.u.n.Load())
}

// Losses implements trace.Shared.
func (m mountUser) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	m.u.Losses(all, f)
}

// Follow implements trace.Shared. The verb itself looks whether the target has ended, and tells what goes wrong.
func (m mountUser) Follow() error {
	ended, err := m.u.Sync()
	if ended {
		return errors.Join(err, target.ErrGone)
	}
	return err
}
