package engine

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

// leave takes the probes out of a batch that can not be registered, and may be left out: try says why
// one can not be. The first of another batch is the error.
func leave(ps []*Probe, try func(p *Probe, i int) error) ([]*Probe, error) {
	kept := ps[:0]
	for i, p := range ps {
		err := try(p, len(kept))
		switch {
		case err == nil:
			kept = append(kept, p)
		case p.mayLeave:
			p.left = err
		default:
			return nil, Numbered(err, i, len(ps))
		}
	}
	return kept, nil
}

// Numbered tells which of several probes an error is about.
func Numbered(err error, i, n int) error {
	if n == 1 {
		return err
	}
	return fmt.Errorf("probe %d of %d: %w", i+1, n, err)
}

// Register arms probes: all of them, or none; or with skip those that can be, and Refused tells of the others.
func (c *Core) Register(ps []*Probe, skip bool) error {
	for _, p := range ps {
		p.knobs, p.mayLeave = &c.knobs, skip
	}
	c.mu.Lock()
	defer c.unlock()
	if err := c.put(slices.Clone(ps)); err != nil {
		return err
	}
	c.startReaper()
	return nil
}

// put arms probes, in one stop, or leaves everything as it was.
func (c *Core) put(ps []*Probe) error {
	err := c.putAll(ps)
	c.finishSharing(err)
	return err
}

func (c *Core) putAll(ps []*Probe) error {
	if err := c.recoverTarget(); err != nil {
		return err
	}
	n := len(ps)
	jumps := map[*function]bool{} // those that a jprobe of the batch stands on
	ps, err := leave(ps, func(p *Probe, _ int) error { return plain(c.place(p, jumps)) })
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
		_, err = leave(ps, func(p *Probe, _ int) error {
			if err := c.pool(p.ev); err != nil {
				return err
			}
			return c.bind(p)
		})
		evs = slices.DeleteFunc(evs, func(e *Event) bool { return e.h != nil && e.h.left != nil })
	}
	for _, p := range left {
		p.h.Changed(p.ev.Place.Addr, p.disabled)
	}
	if err == nil {
		_, err = c.armNew(evs, &AddOptions{Tactic: c.forced, leave: true})
	}
	if err == nil {
		c.admit(slices.DeleteFunc(evs, func(e *Event) bool { return e.ended || e.h != nil && e.h.left != nil }))
		evs = nil
		left = slices.DeleteFunc(left, func(p *Probe) bool { return p.left == nil })
		if len(left) == n {
			err = fmt.Errorf("none of %d probes can be registered: %w", n, ErrRegister)
		}
	}
	if len(left) > 0 {
		c.undo(left, evs)
	}
	for _, p := range left {
		p.left = plain(p.left)
	}
	return plain(err)
}

// undo forgets probes that could not be armed, and other events of their batch.
func (c *Core) undo(ps []*Probe, others []*Event) {
	evs := eventsOf(ps)
	for _, e := range others {
		if e.h == nil {
			evs = append(evs, e)
		}
	}
	c.forget(evs)
	for _, p := range ps {
		if !p.ev.serves() {
			c.finish(p)
			continue
		}
		c.waitHandlers([]*Probe{p}) // its code is in, and another's could not be put in
		c.stuck = append(c.stuck, p)
		c.startReaper()
	}
}

// place finds where a probe is to stand and makes its event. jumps are the functions of the jprobes that are
// registered with it, as far as they have been placed.
func (c *Core) place(p *Probe, jumps map[*function]bool) error {
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
	e := &Event{Def: p.def, knobs: &c.knobs, tail: -1, h: p, internalProbe: p.internal}
	e.work.Count = true
	if err := c.locate(e, r); err != nil {
		return err
	}
	e.tail, p.ev = -1, e
	if p.h.Fits == nil {
		return nil
	}
	if p.h.Jump == nil {
		_, _, err = p.h.Fits(e.Place.Func, e.Place.Module.Image)
		return err
	}
	if jumps[e.fn] || slices.ContainsFunc(e.fn.events, func(o *Event) bool { return !o.ended && o.h != nil && o.h.h.Jump != nil }) {
		return errno.Errorf(unix.EEXIST, "%s has a jprobe, and a function can have one only", e.fn.Name)
	}
	if p.stack, p.spill, err = p.h.Fits(e.Place.Func, e.Place.Module.Image); err != nil {
		return err
	}
	jumps[e.fn] = true
	return nil
}

// atEntry refuses a jprobe that is not at its function's entry.
func (c *Core) atEntry(p *Probe, r symbol.Resolved) error {
	if p.h.Jump == nil || r.Func == nil || r.Offset == 0 {
		return nil
	}
	f, err := c.function(r)
	if err != nil || r.Addr == f.Code.EntryPoint() {
		return err
	}
	return errno.Errorf(unix.EINVAL, "0x%x is %d bytes behind the start of %s: a jprobe stands at a function's entry", r.Addr, r.Offset, f.Name)
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

// inlined says where a Go function of this program went that exists only inlined; err is the error for a name that no
// function has.
func (c *Core) inlined(name string, err error) error {
	into := c.scan.InlinedInto(name)
	if len(into) == 0 {
		return err
	}
	for i := range into {
		into[i] = printable(into[i])
	}
	return errno.Errorf(unix.ENOENT, "%s exists only inlined, in %s: probe there, or mark it //go:noinline", printable(name), strings.Join(into, ", "))
}
