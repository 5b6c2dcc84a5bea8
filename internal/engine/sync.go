package engine

import (
	"errors"
	"slices"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Sync looks at what the target has mapped now, and arms what waits for that: see kprobes.Core.Sync.
func (c *Core) Sync() error {
	c.mu.Lock()
	defer c.unlock()
	err := errors.Join(c.stubbed.syncErr, c.sync())
	c.stubbed.syncErr = nil
	return err
}

// syncStubs is Sync where return addresses are replaced and nobody may call it. Precondition: mu is
// held.
func (c *Core) syncStubs() {
	if !slices.ContainsFunc(c.events, func(e *Event) bool { return byStub(e) && !e.gone && e.withdrawn == nil }) && !c.stubbed.left {
		return
	}
	if err := c.sync(); err != nil && !errors.Is(err, target.ErrGone) {
		c.stubbed.syncErr = alsoTold(c.stubbed.syncErr, err)
	}
}

// maxKept bounds the text of errors that are kept for the next Sync, in bytes.
const maxKept = 16 << 10

// alsoTold joins an error to those that wait to be told, unless the same waits already. What tells of a debugger comes once, and must not be
// lost where another comes before Sync.
func alsoTold(kept, err error) error {
	if kept == nil {
		return err
	}
	if text := kept.Error(); len(text) > maxKept || strings.Contains(text, err.Error()) {
		return kept
	}
	return errors.Join(kept, err)
}

// sync is Sync. Precondition: mu is held.
func (c *Core) sync() error {
	loaded := c.records.SetWaits(false) // before the look: a thread that loads later waits for the next one
	changed, err := c.t.Refresh()
	changed = changed || c.stale
	c.stale = false
	c.space.Store(c.t.Space())
	switch {
	case err != nil:
	case changed && c.debugged():
		c.stale = true // the rest needs stops: when the debugger has gone
		err = c.dropGone()
	case changed:
		c.stubbed.readers = nil
		err = errors.Join(c.updateUnwind(), c.dropGone(), c.walkLate(), c.withdraw(), c.armLate())
		c.note()
	case time.Since(c.looked) >= keepEvery:
		c.looked = time.Now()
		err = errors.Join(c.withdraw(), c.lateUnwind())
	}
	err = errors.Join(err, c.yield(), c.lookForWritten())
	if t := c.can.Beginner; t != nil && !c.yielded && !t.Begin() && loaded {
		loaded = false // its thread waits on: Begin is tried again
		c.records.SetWaits(true)
	}
	if t := c.can.Filterer; t != nil && c.filters && !c.yielded {
		err = errors.Join(err, t.CheckFilters(false))
	}
	if loaded {
		late, bad := c.t.Answer()
		if late {
			c.late.Add(1)
		}
		err = errors.Join(err, bad)
	}
	return err
}

// armLate arms the events whose object has come.
func (c *Core) armLate() error {
	var ready []*Event
	var errs []error
	for _, e := range c.events {
		if e == nil || !e.gone || e.ended || e.h != nil || e.over != nil {
			continue
		}
		r, err := c.resolve(e.Def)
		if errors.Is(err, symbol.ErrNoModule) {
			continue
		}
		if err == nil {
			err = c.locate(e, r)
		}
		if err == nil {
			c.numberTail(e)
			err = c.show(e)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e.gone = false
		ready = append(ready, e)
	}
	if len(ready) > 0 {
		if _, err := c.armNew(ready, &AddOptions{Tactic: ready[0].force}); err != nil {
			c.keepGone(ready)
			if c.moved(err) { // the next Sync arms them, where they are then
				c.stale = true
			} else {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// keepGone takes back what was done for events that could not be armed.
func (c *Core) keepGone(evs []*Event) {
	for _, e := range evs {
		e.release()
		if e.fn != nil {
			e.fn.drop(e)
		}
		e.gone, e.fn = true, nil
	}
}
