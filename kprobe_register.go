package kprobes

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
)

// RegisterKprobe arms a probe of the target. Errors answer errors.Is: EINVAL (no place, two
// places, registered already, not code, on the blacklist), ENOENT (no such symbol), EILSEQ
// (inside an instruction), EOPNOTSUPP (the target can not call handlers, or no tactic is
// safe there), EDEADLK (called by a handler). Then nothing has been changed.
func (c *Core) RegisterKprobe(k *Kprobe) error { return c.RegisterKprobes([]*Kprobe{k}) }

// RegisterKprobes arms all of the probes in one stop of the target, or none.
func (c *Core) RegisterKprobes(ks []*Kprobe) error { return registerAll(c, ks, newKprobe, nil) }

// RegisterKprobesOrSkip arms those of the probes that can be, in one stop of the target. The others are
// told to skip with the reason, once the stop is over; they are as they were. The error is what keeps all
// of them from being armed: then nothing has been changed, but skip may have been called.
func (c *Core) RegisterKprobesOrSkip(ks []*Kprobe, skip func(*Kprobe, error)) error {
	return registerAll(c, ks, newKprobe, skip)
}

// UnregisterKprobe disarms a probe and forgets it. When it returns, none of the probe's
// handlers runs or will run; what was counted stays readable. A probe that is not
// registered gets Addr 0, and nothing else happens; nothing at all happens if a handler
// calls it.
func (c *Core) UnregisterKprobe(k *Kprobe) { c.UnregisterKprobes([]*Kprobe{k}) }

// UnregisterKprobes disarms probes in one stop of the target.
func (c *Core) UnregisterKprobes(ks []*Kprobe) { c.unregister(kindKprobe, ks) }

// EnableKprobe arms a probe that was disabled. It is an error (EINVAL) if the probe is not
// registered, or its object is not mapped any more; one that is enabled stays so.
func (c *Core) EnableKprobe(k *Kprobe) error { return c.enable(k, true) }

// DisableKprobe disarms a probe until it is enabled. When it returns none of the probe's
// handlers runs, and a hit that was on its way passes uncounted. It is an error (EINVAL) if the
// probe is not registered; one that is disabled stays so.
func (c *Core) DisableKprobe(k *Kprobe) error { return c.enable(k, false) }

// NMissed is the number of hits at which the handlers were not run, since registration: in
// a handler called by one of its handlers, or for the other reasons that State tells.
func (k *Kprobe) NMissed() uint64 { return k.State().Misses.Total() }

// State tells how the probe is armed and what it has counted since registration; the zero
// State if it was never registered.
func (k *Kprobe) State() State {
	if r := k.load(); r != nil {
		return stateOf(r.core.e.State(r.p))
	}
	return State{}
}

// Fault tells why the probe was disabled: what went wrong in one of its handlers; nil if
// nothing did since it was registered or enabled.
func (k *Kprobe) Fault() error {
	if r := k.load(); r != nil {
		return r.p.Fault()
	}
	return nil
}

// newKprobe checks what can be told without the target.
func newKprobe(k *Kprobe) (*registration, error) {
	if k == nil {
		return nil, errno.Errorf(unix.EINVAL, "kprobe: nil")
	}
	h := engine.Handlers{OwnFaults: true}
	if pre := k.PreHandler; pre != nil {
		h.Pre = func(regs *Regs) int { return pre(k, regs) }
	}
	if post := k.PostHandler; post != nil {
		h.Post = func(regs *Regs) { post(k, regs, 0) }
	}
	return newRegistration(k, kindKprobe, h, engine.ProbeOptions{})
}

// checkNoHandlers refuses handlers that only a Kprobe runs, of kprobes that are part of another kind.
func checkNoHandlers(k *Kprobe, kind string) error {
	if k.PreHandler != nil || k.PostHandler != nil {
		return errno.Errorf(unix.EINVAL, "the Kp of a %s has a pre or post handler, which would never run: register a Kprobe of its own", kind)
	}
	return nil
}
