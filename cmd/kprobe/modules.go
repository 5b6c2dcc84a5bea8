package main

import (
	"errors"
	"time"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/modules"
)

// followPause is how long the host sleeps between two looks at what modules have written; each syncLooks-th time it looks what the process has mapped,
// and whether a handler has faulted.
const (
	followPause = 20 * time.Millisecond
	syncLooks   = 10
)

// withModules does something with the modules of a command line's process, in the host. create says that they are to be there; else without any do is given
// nil.
func (h *host) withModules(a asked, create bool, do func(*modules.Table) error) error {
	h.modulesMu.Lock()
	defer h.modulesMu.Unlock()
	if h.modules == nil && !create {
		return do(nil)
	}
	if h.modules == nil {
		l, err := h.openModules(a)
		if err != nil {
			return err
		}
		h.modules = l
		go l.follow()
	}
	err := do(h.modules.Table)
	if h.modules.Empty() {
		l := h.modules
		close(l.stop)
		<-l.done
		h.modules = nil
		err = errors.Join(err, l.u.Leave(nil), l.u.Close())
	}
	return err
}

// openModules makes the modules a user of the process.
func (h *host) openModules(a asked) (*loaded, error) {
	con := &console{
		args: a.con.args, stdout: a.con.stdout, stderr: a.con.stderr, dir: a.con.dir, root: a.con.root, host: h, of: a.con.of, left: make(chan struct{}),
	}
	u, err := h.join(asked{con: con, of: a.of}, func(one *hit.Hit) { h.table.Log().Take(one) })
	a.con.again = con.again
	if err != nil {
		return nil, err
	}
	h.pollMu.Lock()
	defer h.pollMu.Unlock()
	if h.table == nil {
		if h.table, err = modules.New(engine.Of(u.core), u.id); err != nil {
			return nil, errors.Join(err, u.Leave(nil), u.Close())
		}
	}
	h.table.SetUser(u.id)
	return &loaded{Table: h.table, u: u, stop: make(chan struct{}), done: make(chan struct{})}, nil
}

// follow reads what modules write, and follows the process, until nobody needs it or the process has ended.
func (l *loaded) follow() {
	defer close(l.done)
	for n := 0; ; n++ {
		l.u.Poll(nil)
		ended := false
		if n%syncLooks == 0 {
			l.CheckFaults()
			ended, _ = l.u.Sync() // what goes wrong others are told
		}
		select {
		case <-l.stop:
			return
		case <-time.After(followPause):
		}
		if ended {
			go l.u.h.forgetModules(l)
			return
		}
	}
}

// forgetModules ends the modules of a process that has ended.
func (h *host) forgetModules(l *loaded) {
	h.modulesMu.Lock()
	defer h.modulesMu.Unlock()
	if h.modules != l {
		return
	}
	h.modules = nil
	_ = errors.Join(l.u.Leave(nil), l.u.Close()) // there is nobody to tell
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions == 0 && h.users == 0 {
		h.end()
		once(h.done)
	}
}
