package engine

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// stub gives an event whose returns come by trampoline what it needs: the trampoline, and
// probes of the engine on the unwinders, which stay until Close.
func (c *Core) stub(e *Event) error {
	if !e.byStub {
		return nil
	}
	tr, err := c.can.ReturnReplacer.Trampoline(e.fn.Start)
	if err != nil {
		return e.refused(err)
	}
	if err := c.walkers(tr); err != nil {
		return e.refused(fmt.Errorf("by trampoline, the unwinder can not be probed: %w", err))
	}
	if len(c.stubbed.walkers) == 0 && !c.t.Space().Modules()[0].Image.Static() {
		if c.loaderProbe == nil {
			return e.refused(errno.Errorf(unix.EOPNOTSUPP, "by trampoline, the loader can not be probed: an unwinder that comes later would not be seen"))
		}
		tr.Off = c.loaderProbe.work.Wait + switchWord
	}
	e.work.Trampoline = tr
	return nil
}

// switchWord is the offset of the word that says that nobody answers the probe on the loader
// (internal/arch/amd64, wait.go).
const switchWord = 8

// walkers puts probes on the unwinders that have none yet. tr is any trampoline of the target.
func (c *Core) walkers(tr *arch.Trampoline) error {
	var fresh []*Event
	for _, m := range c.t.Space().Modules() {
		u := c.scan.Unwinder(m.Image)
		if u.FindFDE == nil || c.stubbed.walkers[m.Runtime(u.FindFDE.Addr)] != nil {
			continue
		}
		r := resolvedAt(m, u.FindFDE)
		f, err := c.function(r)
		if err != nil {
			return err
		}
		e := &Event{Def: &event.Def{Kind: event.Probe}, Place: r, knobs: &c.knobs, fn: f, tail: -1, internalProbe: true, points: []uint64{f.Code.EntryPoint()}}
		e.work = arch.ProbeOp{Role: arch.RoleUnwind, Trampoline: tr, Count: true}
		if len(f.events) == 0 {
			f.constraints = constraints{force: arch.TacticJump}
		}
		fresh = append(fresh, e)
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := c.armOwn(fresh); err != nil {
		return err
	}
	if c.stubbed.walkers == nil {
		c.stubbed.walkers = map[uint64]*Event{}
	}
	for _, e := range fresh {
		c.stubbed.walkers[e.fn.Start] = e
	}
	return nil
}

// walkLate probes unwinders in objects that have come, if return addresses are replaced.
func (c *Core) walkLate() error {
	for _, e := range c.events {
		if byStub(e) && e.work.Trampoline != nil {
			return c.walkers(e.work.Trampoline)
		}
	}
	return nil
}

// putBack puts back the return addresses of calls in progress, and then takes out the probes on
// the unwinders, and puts back in that stop what was left: as long as a stub stands on a stack they
// are needed, also when the tracer is killed. Precondition: no other event is armed.
func (c *Core) putBack() error {
	t := c.can.ReturnReplacer
	if t == nil || len(c.stubbed.walkers) == 0 {
		return nil
	}
	var evs []*Event
	for _, e := range c.stubbed.walkers {
		evs = append(evs, e)
	}
	c.stubbed.walkers = nil
	err := t.Quiesce()
	if errors.Is(err, target.ErrGone) {
		return err
	}
	err = errors.Join(err, c.t.Commit(&target.Change{Then: t.PutBack}))
	return errors.Join(err, c.remove(evs, stopping{then: t.PutBack}))
}

// withdraw has events no longer replace return addresses, and puts back what is replaced, where
// somebody has come who may read them: an object that was loaded (the thread that loads it waits
// for Sync, a bounded time), or code that is made while the program runs. It gives the reason
// once. Such events count nothing any more; they do not come back by themselves.
func (c *Core) withdraw() error {
	t := c.can.ReturnReplacer
	if t == nil {
		return nil
	}
	var evs []*Event
	asked := true
	for _, e := range c.events {
		if byStub(e) && !e.gone && e.withdrawn == nil && e.fn != nil {
			evs = append(evs, e)
			asked = asked && e.wantStub
		}
	}
	if len(evs) > 0 {
		c.askReaders(t, c.stubbed.late)
		why := c.stubbed.never
		if why == nil && !asked {
			why = c.stubbed.unknown
		}
		if why == nil {
			return nil
		}
		why = fmt.Errorf("return probes by trampoline have been taken out: %w", why)
		for _, e := range evs {
			e.withdrawn = why
		}
		c.stubbed.left = true
		return errors.Join(why, c.endStubs(t, evs))
	}
	if c.stubbed.left {
		return c.endStubs(t, nil)
	}
	return nil
}

// endStubs takes the code of events that were withdrawn out, and puts return addresses back.
// What can not be done now is done by the next Sync.
func (c *Core) endStubs(t target.ReturnReplacer, evs []*Event) error {
	fns := map[*function]bool{}
	for _, e := range c.events {
		if e != nil && e.withdrawn != nil && e.fn != nil && e.fn.mustChange() {
			fns[e.fn] = true
		}
	}
	if err := c.update(sortedFunctions(fns), stopping{then: c.reclaimer.InStop(callsOf(evs))}); err != nil {
		return err
	}
	if err := t.Quiesce(); err != nil {
		return err
	}
	if err := c.t.Commit(&target.Change{Then: t.PutBack}); err != nil {
		return err
	}
	c.stubbed.left = false
	return nil
}
