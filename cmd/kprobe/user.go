package main

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/target"
)

// Losses tells of what was lost of the user's events.
func (u *user) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	u.h.pollMu.Lock()
	defer u.h.pollMu.Unlock()
	if all {
		u.h.losses(true)
	}
	for l, records := range u.lost {
		f(l.of, l.cpu, records)
	}
	clear(u.lost)
}

func (u *user) Names() hit.Namer { return u.h.base.Names() }

func (u *user) Add(defs []*event.Def, o *kprobes.AddOptions) error {
	for _, d := range defs {
		d.User = u.id
	}
	return u.probed.Add(defs, o)
}

// Run lets a program go on that was started for the user. If it cannot, the user has left.
func (u *user) Run() error {
	p, ok := u.h.base.(*tracedProcess)
	if !ok || u.con.of.Program == 0 {
		return nil
	}
	select {
	case <-u.con.of.Gone: // who has started it was killed
		return errors.Join(p.s.proc.Signal(unix.SIGKILL), u.Leave(nil))
	default:
	}
	if err := p.begin(); err != nil {
		return errors.Join(err, u.Leave(nil))
	}
	u.h.mu.Lock()
	once(u.h.opened)
	u.h.mu.Unlock()
	u.con.of.Begun()
	return nil
}

// Poll gives each user the hits of its events, and tells how many came for this one since it was called last. Their
// number is all that the caller needs: f is that of join.
func (u *user) Poll(func(*hit.Hit)) int {
	u.h.poll()
	return int(u.n.Swap(0))
}

// Sync tells each user what went wrong.
func (u *user) Sync() (ended bool, err error) {
	u.h.syncMu.Lock()
	ended, err = u.h.base.Sync()
	u.h.syncMu.Unlock()
	if err != nil || ended {
		u.h.pollMu.Lock()
		for _, o := range u.h.takers {
			o.tell(ended, err)
		}
		u.h.pollMu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	err, u.errs = errors.Join(u.errs...), nil
	return u.ended, err
}

// maxTold bounds what is remembered of errors that nobody asks for.
const maxTold = 100

func (u *user) tell(ended bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = u.ended || ended
	if err != nil && len(u.errs) < maxTold {
		u.errs = append(u.errs, err)
	}
}

func (u *user) Exited() <-chan struct{} { return u.h.base.Exited() }

func (u *user) Remarks() []string { return u.h.base.Remarks() }

// Leave takes the user's events out, and the last one's end everything.
func (u *user) Leave(f func(*hit.Hit)) error {
	h := u.h
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(u.con.left)
	h.users--
	if u.last = h.users == 0; u.last {
		h.end()
		h.pollMu.Lock()
		defer h.pollMu.Unlock()
		return h.base.Leave(f)
	}
	u.tactics = map[*kprobes.Event]string{}
	for _, e := range u.evs {
		u.tactics[e] = formOf(e)
	}
	err := u.core.Remove(u.evs)
	if errors.Is(err, target.ErrGone) {
		err = nil
	}
	h.poll() // what lies in the ring of a target with a clock of its own waits from when it was seen
	time.Sleep(records.SettleTime)
	h.poll()
	h.pollMu.Lock()
	defer h.pollMu.Unlock()
	h.losses(true)
	delete(h.takers, u.id)
	return err
}

func (u *user) Totals() []*total {
	if u.last {
		return u.probed.Totals()
	}
	return totals(u.core, u.evs, func(e *kprobes.Event) string { return u.tactics[e] })
}

func (u *user) Status() error { return nil }

// Close gives the process up after its last user.
func (u *user) Close() error {
	if !u.last {
		return nil
	}
	return u.h.base.Close()
}
