package kprobes

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// registerAll registers probes that are made by a kind's check: all or none; or, if skip is not nil,
// those that can be, and tells it of the others.
func registerAll[T any](c *Core, items []T, check func(T) (*probe, error), skip func(T, error)) error {
	if err := c.outside(); err != nil {
		return err
	}
	if len(items) == 0 {
		return errno.Errorf(unix.EINVAL, "no probes to register")
	}
	ps := make([]*probe, 0, len(items))
	of := make([]T, 0, len(items))
	for i, it := range items {
		p, err := check(it)
		switch {
		case err == nil:
			p.core, p.mayLeave = c, skip != nil
			ps, of = append(ps, p), append(of, it)
		case skip != nil:
			skip(it, err)
		default:
			return numbered(err, i, len(items))
		}
	}
	err := c.register(slices.Clone(ps))
	for i, p := range ps {
		if p.left != nil {
			skip(of[i], p.left)
		}
	}
	return err
}

// leave takes the probes out of a batch that can not be registered, and may be left out: try says why
// one can not be. The first of another batch is the error.
func leave(ps []*probe, try func(p *probe, i int) error) ([]*probe, error) {
	kept := ps[:0]
	for i, p := range ps {
		err := try(p, len(kept))
		switch {
		case err == nil:
			kept = append(kept, p)
		case p.mayLeave:
			p.left = err
		default:
			return nil, numbered(err, i, len(ps))
		}
	}
	return kept, nil
}

// numbered tells which of several probes an error is about.
func numbered(err error, i, n int) error {
	if n == 1 {
		return err
	}
	return fmt.Errorf("probe %d of %d: %w", i+1, n, err)
}

// register takes possession of what the probes stand behind, and arms them.
func (c *Core) register(ps []*probe) error {
	var owned []*probe
	ps, err := leave(ps, func(p *probe, _ int) error {
		old := p.kp.raw()
		if old != nil && old.kp == p.kp && !old.ended.Load() || !p.kp.swap(old, p) {
			return errRegistered(p.kp)
		}
		owned = append(owned, p)
		return nil
	})
	if err != nil {
		disown(owned)
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.put(ps); err != nil {
		disown(owned)
		return err
	}
	disown(slices.DeleteFunc(owned, func(p *probe) bool { return p.left == nil }))
	c.startReaper()
	return nil
}

func disown(ps []*probe) {
	for _, p := range ps {
		p.kp.swap(p, nil)
	}
}

// put arms probes, in one stop, or leaves everything as it was.
func (c *Core) put(ps []*probe) error {
	err := c.putAll(ps)
	c.settleOwn(err)
	return err
}

func (c *Core) putAll(ps []*probe) error {
	if err := c.recoverTarget(); err != nil {
		return err
	}
	n := len(ps)
	jumps := map[*function]bool{} // those that a jprobe of the batch stands on
	ps, err := leave(ps, func(p *probe, _ int) error { return plain(c.place(p, jumps)) })
	if err != nil {
		return err
	}
	if len(ps) == 0 {
		return fmt.Errorf("none of %d probes can be registered: %w", n, ErrRegister)
	}
	evs := make([]*Event, len(ps))
	for i, p := range ps {
		evs[i] = p.ev
	}
	c.reserve(evs)
	if err := c.prepare(); err != nil {
		return err
	}
	c.watchFilters(evs)
	evs, err = c.guard(evs)
	if err != nil {
		return err
	}
	err = c.number(evs)
	left := slices.Clone(ps) // those that are not armed
	if err == nil {
		_, err = leave(ps, func(p *probe, _ int) error {
			if err := c.pool(p.ev); err != nil {
				return err
			}
			return p.bind()
		})
		evs = slices.DeleteFunc(evs, func(e *Event) bool { return e.h != nil && e.h.left != nil })
	}
	old := tell(left)
	if err == nil {
		_, err = c.arm(evs, &AddOptions{Tactic: c.forced, leave: true})
	}
	if err == nil {
		evs = nil
		left = slices.DeleteFunc(left, func(p *probe) bool { return p.left == nil })
		if len(left) == n {
			err = fmt.Errorf("none of %d probes can be registered: %w", n, ErrRegister)
		}
	}
	if len(left) > 0 {
		c.undo(left, evs, old)
	}
	for _, p := range left {
		p.left = plain(p.left)
	}
	return plain(err)
}

// undo forgets probes that could not be armed, and other events of their batch.
func (c *Core) undo(ps []*probe, others []*Event, old map[*probe]told) {
	evs := eventsOf(ps)
	for _, e := range others {
		if e.h == nil {
			evs = append(evs, e)
		}
	}
	c.forget(evs)
	for _, p := range ps {
		p.kp.Addr, p.kp.Flags = old[p].addr, old[p].flags
		if !p.ev.serves() {
			p.finish()
			continue
		}
		c.waitHandlers([]*probe{p}) // its code is in, and another's could not be put in
		c.stuck = append(c.stuck, p)
		c.startReaper()
	}
}

// told is what a Kprobe said before tell.
type told struct {
	addr  uint64
	flags Flags
}

// tell writes the probes' addresses and flags for their handlers, which may run as soon as
// they are armed. It gives what stood there.
func tell(ps []*probe) map[*probe]told {
	old := make(map[*probe]told, len(ps))
	for _, p := range ps {
		old[p] = told{p.kp.Addr, p.kp.Flags}
		p.kp.Addr, p.kp.Flags = p.ev.Place.Addr, p.flags
	}
	return old
}

// place finds where a probe is to stand and makes its event. jumps are the functions of the jprobes that are
// registered with it, as far as they have been placed.
func (c *Core) place(p *probe, jumps map[*function]bool) error {
	if err := c.forbidden(p.def); err != nil {
		return err
	}
	r, err := c.where(p.def.Place)
	if err != nil {
		return err
	}
	if err := c.atEntry(p, r); err != nil {
		return err
	}
	e := &Event{Def: p.def, core: c, tail: -1, h: p}
	e.work.Count, e.empty = true, p.disabled
	if err := c.locate(e, r); err != nil {
		return err
	}
	e.tail, p.ev = -1, e
	if p.kind != kindJprobe {
		return nil
	}
	if jumps[e.fn] || slices.ContainsFunc(e.fn.events, func(o *Event) bool { return !o.ended && o.h != nil && o.h.kind == kindJprobe }) {
		return errno.Errorf(unix.EEXIST, "%s has a jprobe, and a function can have one only", e.fn.name)
	}
	if err := p.matches(); err != nil {
		return err
	}
	jumps[e.fn] = true
	return nil
}

// atEntry refuses a jprobe that is not at its function's entry.
func (c *Core) atEntry(p *probe, r symbol.Resolved) error {
	if p.kind != kindJprobe || r.Func == nil || r.Offset == 0 {
		return nil
	}
	f, err := c.function(r)
	if err != nil || r.Addr == f.a.EntryPoint() {
		return err
	}
	return errno.Errorf(unix.EINVAL, "0x%x is %d bytes behind the start of %s: a jprobe stands at a function's entry", r.Addr, r.Offset, f.name)
}

// where finds the instruction of a probe. An address is one of the running target first.
func (c *Core) where(pl event.Place) (symbol.Resolved, error) {
	s := c.t.Space()
	if pl.Kind == event.PlaceAddr {
		if m := s.ModuleAt(pl.Addr); m != nil && m.Image.Executable(m.Linktime(pl.Addr)) {
			r := symbol.Resolved{Module: m, Vaddr: m.Linktime(pl.Addr), Addr: pl.Addr}
			r.Func, r.Offset, _ = m.Image.At(r.Vaddr)
			return r, nil
		}
		return s.Resolve(symbol.Place{Addr: pl.Addr})
	}
	p := symbol.Place{Sym: pl.Symbol, Offset: pl.Offset}
	r, err := s.Resolve(p)
	var missing *symbol.NotFoundError
	if !errors.As(err, &missing) {
		return r, err
	}
	if mod, sym, ok := strings.Cut(pl.Symbol, ":"); ok && mod != "" && sym != "" && sym[0] != ':' {
		p.Mod, p.Sym = mod, sym
		return s.Resolve(p)
	}
	return r, c.inlined(pl.Symbol, err)
}
