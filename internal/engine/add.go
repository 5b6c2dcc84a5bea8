package engine

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
)

// Add registers and arms events: all of them in one stop of the target, or none.
func (c *Core) Add(defs []*event.Def, o *AddOptions) ([]*Event, error) {
	c.mu.Lock()
	defer c.unlock()
	if o == nil {
		o = &AddOptions{}
	}
	if err := c.checkBudget(o.Budget); err != nil {
		return nil, err
	}
	if c.can.Alive != nil {
		if err := c.can.Alive(); err != nil {
			return nil, err
		}
	}
	if err := c.recoverTarget(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		evs, armed, err := c.add(defs, o)
		c.finishSharing(err)
		if err == nil || !armed || try == addTries || !c.moved(err) {
			return evs, err
		}
		c.watchLoader(o) // from now on whoever loads or unloads waits for a moment
		c.remapped()
	}
}

// addTries bounds the attempts at an addition in a program that loads and unloads objects meanwhile.
const addTries = 5

// add is Add, once. armed: it was about to arm the events when it failed.
func (c *Core) add(defs []*event.Def, o *AddOptions) (_ []*Event, armed bool, _ error) {
	var evs []*Event
	var errs []error
	defer func() { c.batch, c.skipped = nil, nil }()
	c.takeHist = c.compileHist
	if o.Budget.given() {
		c.takeBudgets()
	}
	for _, d := range defs {
		es, err := c.define(d, o)
		errs = append(errs, err)
		evs = append(evs, es...)
		c.batch = evs
	}
	if err := errors.Join(errs...); err != nil {
		return nil, false, err
	}
	if len(evs) == 0 {
		return nil, false, errno.Errorf(unix.ENOENT, "no function was found to probe")
	}
	c.reserve(evs)
	if err := c.prepare(); err != nil {
		return nil, false, err
	}
	c.watchFilters(evs)
	evs = c.addHooks(evs, o)
	if c.markLeft != nil {
		c.markLeft(evs)
	}
	if err := c.number(evs); err != nil {
		for _, e := range evs {
			c.namer(e.Def).Release(e.Name)
		}
		return nil, false, err
	}
	err := c.linkHists(evs)
	if err == nil {
		evs, err = c.armNew(evs, o)
	}
	if err != nil {
		c.forget(evs)
		return nil, true, err
	}
	if err := c.noneLeft(defs, evs); err != nil {
		return nil, false, errors.Join(err, c.remove(evs, stopping{}))
	}
	if slices.ContainsFunc(defs, func(d *event.Def) bool { return d.Kind == event.Return }) {
		c.startReaper()
	}
	c.admit(evs)
	c.admitLinked(evs)
	for n := len(evs); n > 0 && evs[n-1].internalProbe; n-- { // addHooks's
		evs = evs[:n-1]
	}
	if c.shown != nil {
		c.shown(evs)
	}
	return evs, false, nil
}

// armNew is arm for what a caller wants; what the engine itself needs for it comes first.
func (c *Core) armNew(evs []*Event, o *AddOptions) ([]*Event, error) {
	c.stubbed.readers = nil
	if c.meetsOwn(evs) { // what the caller wants there must not come before the other own probes
		if err := errors.Join(c.armOwnNow(), c.located(evs)); err != nil {
			return evs, err
		}
	}
	for _, e := range evs {
		if e.h != nil || e.gone { // a Probe has its instances already
			continue
		}
		if err := c.pool(e); err != nil {
			return evs, e.refused(err)
		}
	}
	kept, err := c.placeEvents(evs, o)
	if err == nil {
		kept, err = c.keep(kept, o, c.stub)
	}
	if err == nil {
		err = c.needUnwind(kept)
	}
	if err == nil {
		err = c.histMemory(kept)
	}
	if err == nil && c.budgets.give != nil {
		err = c.budgets.give(kept)
	}
	if err == nil && c.giveSamples != nil {
		err = c.giveSamples(kept)
	}
	if err == nil {
		kept, err = c.install(kept, o)
	}
	if err != nil {
		return evs, err
	}
	return kept, nil
}
