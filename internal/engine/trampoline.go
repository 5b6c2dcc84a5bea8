package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Returns is how a return probe sees its function return.
type Returns string

// The ways to see returns.
const (
	// ReturnsExits: at each instruction that leaves the function.
	ReturnsExits Returns = "exits"
	// ReturnsTrampoline: by a return address of ours in place of the caller's.
	ReturnsTrampoline Returns = "trampoline"
)

// Returns tells how the event sees returns, and why not at the exits; "" for one that is no
// return probe, or has no place yet.
func (e *Event) Returns() (Returns, error) {
	e.core.mu.Lock()
	defer e.core.mu.Unlock()
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

// trampolines is what the Core knows of the target's.
type trampolines struct {
	asked     bool             // what is known was found out since the last events were armed,
	late      bool             // for events of which this is true
	never     error            // why no return address may be replaced
	unknown   error            // why not unless it is asked for: see readers.go
	reads     map[uint64]error // functions by address: see readsReturn
	looked    time.Time        // when withdraw last looked
	syncErr   error            // of the last Sync that nobody has called
	gone      []*target.Site   // those of functions that are gone, which lead to their detours still
	left      bool             // return addresses are to be put back: see withdraw
	unwinders map[*symbol.Image]symbol.Unwinder
	walkers   map[uint64]*Event // the engine's own probes on _Unwind_Find_FDE, by its address
	unsure    map[uint64]bool   // functions by address: see leaveStubs
}

// switchWord is the offset of the word that says that nobody answers the probe on the loader
// (internal/arch/amd64, wait.go).
const switchWord = 8

// returnPoints finds how the event is to see returns, and the instructions that it needs for
// that.
func (c *Core) returnPoints(e *Event) ([]uint64, error) {
	e.byStub, e.whyStub = false, nil
	exits, err := e.fn.a.Exits()
	if err == nil && e.wantStub {
		err = plan.ErrAsked
	}
	entry := e.fn.a.EntryPoint()
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
	e.points = []uint64{e.fn.a.EntryPoint()}
	if e.fn.serves(e) != nil {
		e.points = points
		return why
	}
	e.byStub, e.whyStub = true, why
	return nil
}

// exits are the instructions at which the event sees returns.
func (e *Event) exits() ([]arch.Exit, error) {
	if e.byStub {
		return nil, nil
	}
	return e.fn.a.Exits()
}

// unseen says why a walk over the stack might not see the real callers; late says that objects
// that come later are looked at.
func (c *Core) unseen(late bool) error {
	found := false
	for _, m := range c.t.Space().Modules() {
		u := c.unwinder(m.Image)
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
		if err := f.takesJump(f.a.EntryPoint()); err != nil {
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

func resolvedAt(m *symbol.Module, fn *symbol.Func) symbol.Resolved {
	return symbol.Resolved{Module: m, Func: fn, Vaddr: fn.Addr, Addr: m.Runtime(fn.Addr)}
}

// unwinder tells which unwinder a file has.
func (c *Core) unwinder(im *symbol.Image) symbol.Unwinder {
	u, ok := c.stubbed.unwinders[im]
	if !ok {
		u = im.Unwinder()
		if c.stubbed.unwinders == nil {
			c.stubbed.unwinders = map[*symbol.Image]symbol.Unwinder{}
		}
		c.stubbed.unwinders[im] = u
	}
	return u
}

// byStub says whether an event replaces return addresses.
func byStub(e *Event) bool { return e != nil && e.byStub && !e.ended }

// stub gives an event whose returns come by trampoline what it needs: the trampoline, and
// probes of the engine on the unwinders, which stay until Close.
func (c *Core) stub(e *Event) error {
	tr, err := c.can.ReturnReplacer.Trampoline(e.fn.start)
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

// walkers puts probes on the unwinders that have none yet. tr is any trampoline of the target.
func (c *Core) walkers(tr *arch.Trampoline) error {
	var fresh []*Event
	for _, m := range c.t.Space().Modules() {
		u := c.unwinder(m.Image)
		if u.FindFDE == nil || c.stubbed.walkers[m.Runtime(u.FindFDE.Addr)] != nil {
			continue
		}
		r := resolvedAt(m, u.FindFDE)
		f, err := c.function(r)
		if err != nil {
			return err
		}
		e := &Event{Def: &event.Def{Kind: event.Probe}, Place: r, core: c, fn: f, tail: -1, internalProbe: true, points: []uint64{f.a.EntryPoint()}}
		e.work = arch.ProbeOp{Role: arch.RoleUnwind, Trampoline: tr, Count: true}
		if len(f.events) == 0 {
			f.wish = constraints{force: arch.TacticJump}
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
		c.stubbed.walkers[e.fn.start] = e
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

// lookForStrays asks the target, while it is there, for the returns that belonged to no call (Counts.Strays). Where an
// event of the function was taken out they are not known, and 0.
func (c *Core) lookForStrays(e *Event) {
	t := c.can.ReturnReplacer
	if t == nil || !e.byStub || e.fn == nil || c.stubbed.unsure[e.fn.start] {
		return
	}
	if n, slot, err := t.Strays(e.fn.start); err == nil {
		e.strays, e.straySlot = n, slot
	}
}

// leaveStubs takes a function out of account of which an event has gone, or does so: calls that
// it knew may still return, and are nobody's.
func (c *Core) leaveStubs(f *function) {
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
	c.stubbed.unsure[f.start] = true
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
	err := t.Settle()
	if errors.Is(err, target.ErrGone) {
		return err
	}
	err = errors.Join(err, c.t.Commit(&target.Change{Then: t.PutBack}))
	return errors.Join(err, c.remove(evs, stopping{then: t.PutBack}))
}
