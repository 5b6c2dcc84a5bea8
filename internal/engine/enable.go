package engine

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Enable arms or disarms a probe that is registered.
func (c *Core) Enable(p *Probe, on bool) error {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case p.ended.Load() || p.knobs != &c.knobs || p.ev == nil:
		return errno.Errorf(unix.EINVAL, "the probe is not registered")
	case on && p.ev.gone:
		return errno.Errorf(unix.EINVAL, "the probe is gone: its code at 0x%x is not mapped any more; unregister it", p.ev.Place.Addr)
	case p.disabled == !on && (!on || !p.h.Off()):
		p.h.Changed(p.ev.Place.Addr, p.disabled)
		return nil
	}
	if err := p.ev.withdrawn; on && err != nil {
		return err
	}
	renewed := func(bool) {}
	if on && p.h.Off() {
		var err error
		c.ending.Add(1)
		renewed, err = p.h.Renew(p.place(), c.calling())
		c.ending.Add(-1)
		if err != nil {
			return err
		}
	}
	err := c.setDisabled([]*Probe{p}, !on, true)
	c.ending.Add(1)
	renewed(err == nil)
	c.ending.Add(-1)
	if err == nil {
		p.h.Changed(p.ev.Place.Addr, p.disabled)
	}
	return err
}

// setDisabled arms or disarms probes in one stop, or changes nothing. With wait it returns when no
// handler of a disabled one runs any more.
func (c *Core) setDisabled(ps []*Probe, disabled, wait bool) error {
	was := make([]bool, len(ps))
	for i, p := range ps {
		was[i], p.disabled = p.disabled, disabled
	}
	var then func() error
	if disabled {
		then = c.reclaimer.InStop(callsOf(eventsOf(ps)))
	} else {
		c.reclaimer.Rearm(callsOf(eventsOf(ps)))
		wake(ps)
	}
	if err := c.update(functionsOf(eventsOf(ps)), stopping{then: then}); err != nil {
		for i, p := range ps {
			p.disabled = was[i]
			p.h.Mute.Store(p.disabled)
		}
		c.requeueDisarmed(functionsOf(eventsOf(ps)), err)
		return plain(err)
	}
	if disabled && wait {
		c.waitHandlers(ps)
	}
	for _, p := range ps {
		p.h.Mute.Store(disabled)
	}
	return nil
}
