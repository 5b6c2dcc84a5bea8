package kprobes

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
)

// newRegistration takes the fields over that all kinds of probes share.
func newRegistration(k *Kprobe, of kind, h engine.Handlers, o engine.ProbeOptions) (*registration, error) {
	var place event.Place
	switch {
	case k.SymbolName != "" && k.Addr != 0:
		if old := k.load(); old != nil && !old.p.Ended() {
			return nil, errRegistered(k)
		}
		return nil, errno.Errorf(unix.EINVAL, "both a symbol %q and an address 0x%x: give one of them, and clear Addr before a probe is registered anew", k.SymbolName, k.Addr)
	case k.SymbolName != "":
		place = event.Place{Kind: event.PlaceSymbol, Symbol: k.SymbolName, Offset: k.Offset}
	case k.Addr != 0:
		place = event.Place{Kind: event.PlaceAddr, Addr: k.Addr + k.Offset}
	default:
		return nil, errno.Errorf(unix.EINVAL, "neither a symbol nor an address: set SymbolName or Addr")
	}
	if fault := k.FaultHandler; fault != nil {
		h.Fault = func(regs *Regs, trap int) int { return fault(k, regs, trap) }
	}
	flags := k.Flags & (FlagDisabled | FlagSleepable)
	h.Changed = func(addr uint64, disabled bool) {
		k.Addr, k.Flags = addr, flags&^FlagDisabled
		if disabled {
			k.Flags |= FlagDisabled
		}
	}
	o.Disabled, o.Sleepable = flags&FlagDisabled != 0, flags&FlagSleepable != 0
	return &registration{kp: k, kind: of, p: engine.NewProbe(place, h, o)}, nil
}

// registerAll registers probes that are made by a kind's check: all or none; or, if skip is not nil,
// those that can be, and tells it of the others.
func registerAll[T any](c *Core, items []T, check func(T) (*registration, error), skip func(T, error)) error {
	if err := c.e.Outside(); err != nil {
		return err
	}
	if len(items) == 0 {
		return errno.Errorf(unix.EINVAL, "no probes to register")
	}
	rs, of, err := claimAll(c, items, check, skip)
	if err != nil {
		return err
	}
	ps := make([]*engine.Probe, len(rs))
	for i, r := range rs {
		ps[i] = r.p
	}
	err = c.e.Register(ps, skip != nil)
	for i, r := range rs {
		why := r.p.Refused()
		if err == nil && why == nil {
			continue
		}
		r.release()
		if why != nil && skip != nil {
			skip(of[i], why)
		}
	}
	return err
}

// claimAll makes the registrations of probes, and puts them behind these, if none is registered. It gives the probes
// too that they belong to: with skip some may be left out.
func claimAll[T any](c *Core, items []T, check func(T) (*registration, error), skip func(T, error)) ([]*registration, []T, error) {
	rs, of := make([]*registration, 0, len(items)), make([]T, 0, len(items))
	for i, it := range items {
		r, err := check(it)
		switch {
		case err == nil:
			r.core = c
			rs, of = append(rs, r), append(of, it)
		case skip != nil:
			skip(it, err)
		default:
			return nil, nil, engine.Numbered(err, i, len(items))
		}
	}
	kept, keptOf := rs[:0], of[:0]
	for i, r := range rs {
		switch {
		case r.claim():
			kept, keptOf = append(kept, r), append(keptOf, of[i])
		case skip != nil:
			skip(of[i], errRegistered(r.kp))
		default:
			for _, r := range kept {
				r.release()
			}
			return nil, nil, engine.Numbered(errRegistered(r.kp), i, len(rs))
		}
	}
	return kept, keptOf, nil
}

// claim puts the registration behind its Kprobe. False: another is there, which has not ended.
func (r *registration) claim() bool {
	old := r.kp.raw()
	if old != nil && old.kp == r.kp && !old.p.Ended() {
		return false
	}
	if !r.kp.swap(old, r) {
		return false
	}
	r.addr, r.flags = r.kp.Addr, r.kp.Flags
	return true
}

// release leaves the Kprobe as it was before claim.
func (r *registration) release() {
	r.kp.Addr, r.kp.Flags = r.addr, r.flags
	r.kp.swap(r, nil)
}

// unregister disarms the probes of a kind that stand behind ks.
func (c *Core) unregister(of kind, ks []*Kprobe) {
	c.e.Unregister(func(end func(*engine.Probe)) {
		for _, k := range ks {
			if k == nil {
				continue
			}
			switch r := k.load(); {
			case r == nil || r.p.Ended():
				k.Addr = 0
			case r.kind == of:
				end(r.p)
			}
		}
	})
}

// enable arms or disarms a probe that is registered.
func (c *Core) enable(k *Kprobe, on bool) error {
	if err := c.e.Outside(); err != nil {
		return err
	}
	if k == nil {
		return errno.Errorf(unix.EINVAL, "probe: nil")
	}
	r := k.load()
	if r == nil {
		return errno.Errorf(unix.EINVAL, "the probe is not registered")
	}
	return c.e.Enable(r.p, on)
}

func errRegistered(k *Kprobe) error {
	return errno.Errorf(unix.EINVAL, "the probe at 0x%x is registered already: unregister it first", k.Addr)
}

// load gives what stands behind the Kprobe; nil if it was never registered, or is a copy of
// one that was.
func (k *Kprobe) load() *registration {
	r := k.raw()
	if r == nil || r.kp != k {
		return nil
	}
	return r
}

// swap puts a registration behind the Kprobe in the place of old, as raw has given it, and
// says whether old still stood there.
func (k *Kprobe) swap(old, r *registration) bool {
	return atomic.CompareAndSwapPointer((*unsafe.Pointer)(unsafe.Pointer(&k.reg)), unsafe.Pointer(old), unsafe.Pointer(r))
}

// raw is load for whatever stands there.
func (k *Kprobe) raw() *registration {
	return (*registration)(atomic.LoadPointer((*unsafe.Pointer)(unsafe.Pointer(&k.reg))))
}

// closure gives a func value's pointer: the data word of the interface that holds it
// (internal/abi.EmptyInterface; a func is pointer-shaped). Precondition: f holds a func.
func closure(f any) unsafe.Pointer { return (*[2]unsafe.Pointer)(unsafe.Pointer(&f))[1] }
