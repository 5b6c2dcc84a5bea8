package engine

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Returns tells how the event sees returns, and why not at the exits: see kprobes.Event.Returns.
func (e *Event) Returns() (Returns, error) {
	e.knobs.mu.Lock()
	defer e.knobs.mu.Unlock()
	return e.returns()
}

func (e *Event) returns() (Returns, error) {
	switch {
	case e.Def.Kind != event.Return || e.fn == nil && !e.byStub:
		return "", nil
	case e.byStub:
		return ReturnsTrampoline, e.whyStub
	}
	return ReturnsExits, nil
}

// returnPoints finds how the event is to see returns, and the instructions that it needs for
// that.
func (c *Core) returnPoints(e *Event) ([]uint64, error) {
	e.byStub, e.whyStub = false, nil
	exits, err := e.fn.Code.Exits()
	if err == nil && e.wantStub {
		err = plan.ErrAsked
	}
	entry := e.fn.Code.EntryPoint()
	if err != nil && e.force.Held() {
		return nil, fmt.Errorf("return probe refused: %w", err)
	}
	if err != nil {
		if no := c.noTrampoline(e); no != nil {
			return nil, fmt.Errorf("return probe refused: %w; and not by trampoline: %w", err, no)
		}
		e.byStub, e.whyStub = true, err
		return []uint64{entry}, nil
	}
	points := []uint64{entry}
	for _, x := range exits {
		points = append(points, x.Addr)
		if x.Tail && e.tail < 0 {
			e.tail = 0
		}
	}
	return points, nil
}

// returnsElse has an event see returns by trampoline where no tactic can serve all exits: why.
// It gives why where that can not be either.
func (c *Core) returnsElse(e *Event, why error) error {
	if why == nil || e.Def.Kind != event.Return || e.byStub || e.force != "" || c.noTrampoline(e) != nil {
		return why
	}
	points := e.points
	e.points = []uint64{e.fn.Code.EntryPoint()}
	if e.fn.serves(e) != nil {
		e.points = points
		return why
	}
	e.byStub, e.whyStub = true, why
	return nil
}

// noTrampoline says why the return addresses of the event's function may not be replaced.
func (c *Core) noTrampoline(e *Event) error {
	t := c.can.ReturnReplacer
	if t == nil {
		return errno.Errorf(unix.EOPNOTSUPP, "return addresses are left alone in this target")
	}
	fn, m := e.Place.Func, e.Place.Module
	if err := codescan.ReturnDenied(m, fn); err != nil {
		return err
	}
	if c.stubbed.readers == nil || c.stubbed.late != e.deferred {
		c.askReaders(t, e.deferred)
	}
	if err := c.stubbed.never; err != nil {
		return err
	}
	if err := c.stubbed.unknown; err != nil && !e.wantStub {
		return err
	}
	return c.stubbed.readers.Function(m, &e.fn.Function)
}

// askReaders finds out who in the process may read return addresses.
func (c *Core) askReaders(t target.ReturnReplacer, late bool) {
	s := &c.stubbed
	s.readers, s.late = c.scan.ReturnReaders(c.known), late
	s.never, s.unknown = s.readers.Mapped()
	if s.never == nil {
		s.never = errors.Join(t.Replaceable(), c.unseen(late))
	}
}

// known gives the function that begins at an address if it is one with probes.
func (c *Core) known(start uint64) *codescan.Function {
	if f := c.fns[start]; f != nil {
		return &f.Function
	}
	return nil
}

// unseen says why a walk over the stack might not see the real callers; late says that objects
// that come later are looked at.
func (c *Core) unseen(late bool) error {
	found := false
	for _, m := range c.t.Space().Modules() {
		u := c.scan.Unwinder(m.Image)
		switch {
		case u.Other != "":
			return errno.Errorf(unix.EOPNOTSUPP, "%s has an unwinder of its own (%s)", m.Name, u.Other)
		case u.Hidden:
			return errno.Errorf(unix.EOPNOTSUPP, "%s may have an unwinder of its own, and its names are stripped", m.Name)
		case u.FindFDE == nil:
			continue
		}
		f, err := c.function(resolvedAt(m, u.FindFDE))
		if err != nil {
			return fmt.Errorf("the unwinder in %s: %w", m.Name, err)
		}
		if err := f.takesJump(f.Code.EntryPoint()); err != nil {
			return fmt.Errorf("the unwinder in %s: %w", m.Name, err)
		}
		found = true
	}
	mods := c.t.Space().Modules()
	if found || late || len(mods) > 0 && mods[0].Image.Static() {
		return nil
	}
	return errno.Errorf(unix.EOPNOTSUPP, "the process has no unwinder yet (libgcc_s), and nobody looks whether one comes")
}

// lookForStrays asks the target, while it is there, for the returns that belonged to no call (Counts.Strays). Where an
// event of the function was taken out they are not known, and 0.
func (c *Core) lookForStrays(e *Event) {
	t := c.can.ReturnReplacer
	if t == nil || !e.byStub || e.fn == nil || c.stubbed.unsure[e.fn.Start] {
		return
	}
	if n, slot, err := t.Strays(e.fn.Start); err == nil {
		e.strays, e.straySlot = n, slot
	}
}

// replacing takes a function out of account of which an event has gone, or does so: calls that
// it knew may still return, and are nobody's.
func (c *Core) replacing(f *function) {
	gone := false
	for _, s := range f.serving {
		c.lookForStrays(s.e)
		gone = gone || s.e.byStub && (s.e.idle() || !slices.Contains(f.events, s.e))
	}
	if !gone {
		return
	}
	if c.stubbed.unsure == nil {
		c.stubbed.unsure = map[uint64]bool{}
	}
	c.stubbed.unsure[f.Start] = true
}
