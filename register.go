package kprobes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/symbol"
	"kprobes.dev/kprobes/target"
)

// handlers is the part of a Core that serves Kprobes, Kretprobes and Jprobes.
type handlers struct {
	seq      int         // of the next event that is registered
	off      bool        // SetEnabled(false)
	straight bool        // SetOptimization(false)
	forced   arch.Tactic // ForceTactic
	barred   map[uint64]symbol.Resolved
	spare    []int    // numbers of probes that were unregistered, the oldest first
	idle     []*Event // events that only counted and were removed, with their numbers
	warm     []int    // likewise, but a thread may still be in their code
	returned []int    // those of return probes: instances may still have them
	guards   []*Event // the engine's own probes that watch over handlers; none: there was no handler yet
	reaping  reaping
	stuck    []*probe           // unregistered, but their code could not be taken out yet
	owed     map[*function]bool // see owing
	owedIdle []*Event           // events that only counted, of these
	owedLeft []*Event           // those that may have instances
	tidying  bool               // keep is at work
	keeping  bool               // keep runs
	shut     bool               // the Core is closed
	faults   atomic.Uint64      // of handlers, since Open
	ending   atomic.Int32       // goroutines that wait for handlers to end
}

// isGo says whether a function takes its arguments as Go does.
func isGo(fn *symbol.Func) bool { return fn.Lang == symbol.LangGo }

// inHandler says whether a handler of this target's probes calls.
func (c *Core) inHandler() bool {
	t, ok := c.t.(interface{ InHandler() bool })
	return ok && t.InHandler()
}

// outside refuses what a handler must not do.
func (c *Core) outside() error {
	if c.inHandler() {
		return errno.Errorf(unix.EDEADLK, "called by a handler, which the change would have to wait for: do it after the handler, on a goroutine of its own")
	}
	return nil
}

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
	c.keep()
	return nil
}

func disown(ps []*probe) {
	for _, p := range ps {
		p.kp.swap(p, nil)
	}
}

// put arms probes, in one stop, or leaves everything as it was.
func (c *Core) put(ps []*probe) error {
	if err := c.recoverTarget(); err != nil {
		return err
	}
	n := len(ps)
	ps, err := leave(ps, func(p *probe, i int) error { return plain(c.place(p, ps[:i])) })
	if err != nil {
		return err
	}
	if len(ps) == 0 {
		return fmt.Errorf("none of %d probes can be registered: %w", n, ErrRegister)
	}
	if err := c.prepare(); err != nil {
		return err
	}
	evs := make([]*Event, len(ps))
	for i, p := range ps {
		evs[i] = p.ev
	}
	c.watchFilters(evs)
	evs, err = c.guard(evs)
	if err != nil {
		return err
	}
	err = c.number(evs)
	left := slices.Clone(ps) // those that are not armed
	if err == nil {
		ps, err = leave(ps, func(p *probe, _ int) error {
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
		c.hush([]*probe{p}) // its code is in, and another's could not be put in
		c.stuck = append(c.stuck, p)
		c.keep()
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

// place finds where a probe is to stand and makes its event. batch are the probes that are
// registered with it, as far as they have been placed.
func (c *Core) place(p *probe, batch []*probe) error {
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
	for _, o := range append(slices.Clone(c.events), eventsOf(batch)...) {
		if o != nil && !o.ended && o.h != nil && o.h.kind == kindJprobe && o.fn == e.fn {
			return errno.Errorf(unix.EEXIST, "%s has a jprobe, and a function can have one only", e.fn.name)
		}
	}
	return p.matches()
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

func eventsOf(ps []*probe) []*Event {
	out := make([]*Event, len(ps))
	for i, p := range ps {
		out[i] = p.ev
	}
	return out
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

// number of an event of a probe: a fresh one, or that of a probe that was unregistered once
// the ring has no more. ok is false if there is none of these.
func (c *Core) spareNumber() (id int, ok bool) {
	if len(c.spare) == 0 && len(c.returned) > 0 {
		c.sift()
	}
	if len(c.spare) == 0 && len(c.warm) > 0 && c.calmed() {
		c.spare, c.warm = c.warm, nil
	}
	if len(c.spare) == 0 {
		c.settle()
	}
	if len(c.spare) == 0 {
		return 0, false
	}
	id, c.spare = c.spare[0], c.spare[1:]
	c.t.Ring().ClearCounters(id)
	return id, true
}

// settle keeps what removed events have counted and makes their numbers spare, if no thread
// can still count for them.
func (c *Core) settle() {
	if len(c.idle) == 0 || !c.calmed() {
		return
	}
	for _, e := range c.idle {
		n := c.counts(e)
		e.kept = &n
		c.events[e.ID] = nil
		c.spare = append(c.spare, e.ID)
	}
	c.idle = nil
}

// unregister disarms the probes of a kind that stand behind ks.
func (c *Core) unregister(kind byte, ks []*Kprobe) {
	if c.inHandler() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var ps []*probe
	for _, k := range ks {
		if k == nil {
			continue
		}
		p := k.load()
		switch {
		case p == nil || p.ended.Load():
			k.Addr = 0
		case p.core == c && p.kind == kind && p.ev != nil:
			p.ended.Store(true)
			ps = append(ps, p)
		}
	}
	c.takeOut(ps)
}

// Attempts at taking code out that must go out.
const (
	takeOutTries = 10
	takeOutPause = 10 * time.Millisecond
)

// takeOut disarms probes. What can not be taken out of the target now does nothing any
// more, and is taken out by keep.
func (c *Core) takeOut(ps []*probe) {
	if len(ps) == 0 {
		return
	}
	evs := eventsOf(ps)
	err := c.remove(evs, c.leaves(evs))
	for range takeOutTries {
		if err == nil || errors.Is(err, target.ErrGone) {
			break
		}
		time.Sleep(takeOutPause)
		err = c.update(functionsOf(evs), nil)
	}
	for _, p := range ps {
		if err == nil || errors.Is(err, target.ErrGone) {
			p.finish()
			continue
		}
		c.hush([]*probe{p})
		c.stuck = append(c.stuck, p)
	}
}

// functionsOf lists the functions that events stand in.
func functionsOf(evs []*Event) []*function {
	fns := map[*function]bool{}
	for _, e := range evs {
		if e.fn != nil {
			fns[e.fn] = true
		}
	}
	return sortedFunctions(fns)
}

// enable arms or disarms a probe that is registered.
func (c *Core) enable(k *Kprobe, on bool) error {
	if err := c.outside(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k == nil {
		return errno.Errorf(unix.EINVAL, "probe: nil")
	}
	p := k.load()
	switch {
	case p == nil || p.ended.Load() || p.core != c || p.ev == nil:
		return errno.Errorf(unix.EINVAL, "the probe is not registered")
	case on && p.ev.gone:
		return errno.Errorf(unix.EINVAL, "the probe is gone: its code at 0x%x is not mapped any more; unregister it", k.Addr)
	case p.disabled == !on && (!on || !p.off.Load()):
		return nil
	}
	if err := p.ev.withdrawn; on && err != nil {
		return err
	}
	renewed := func(bool) {}
	if on && p.off.Load() {
		var err error
		if renewed, err = p.renew(); err != nil {
			return err
		}
	}
	err := c.setDisabled([]*probe{p}, !on, true)
	renewed(err == nil)
	return err
}

// setDisabled arms or disarms probes in one stop, or changes nothing. With wait it returns when no
// handler of a disabled one runs any more.
func (c *Core) setDisabled(ps []*probe, disabled, wait bool) error {
	was := make([]bool, len(ps))
	for i, p := range ps {
		was[i], p.disabled = p.disabled, disabled
	}
	var then func() error
	if disabled {
		then = c.leaves(eventsOf(ps))
	} else {
		c.anew(eventsOf(ps))
		wake(ps)
	}
	if err := c.update(functionsOf(eventsOf(ps)), then); err != nil {
		for i, p := range ps {
			p.disabled = was[i]
			p.mute.Store(p.disabled)
		}
		c.unserved(functionsOf(eventsOf(ps)), err)
		return plain(err)
	}
	if disabled && wait {
		c.hush(ps)
	}
	for _, p := range ps {
		p.mute.Store(disabled)
		p.flags &^= FlagDisabled
		if disabled {
			p.flags |= FlagDisabled
		}
		p.kp.Flags = p.flags
	}
	return nil
}

// hush waits until no handler of probes whose code has been taken out runs, and lets none run
// any more: a hit may be on its way.
func (c *Core) hush(ps []*probe) {
	caller, ok := c.t.(target.Caller)
	if !ok {
		return
	}
	for _, p := range ps {
		p.mute.Store(true)
	}
	c.ending.Add(1)
	defer c.ending.Add(-1)
	for _, p := range ps {
		for _, b := range p.calls.all() {
			if b != nil {
				caller.Quiet(b.c)
			}
		}
	}
}

// wake lets handlers run of probes whose code is about to be put in.
func wake(ps []*probe) {
	for _, p := range ps {
		p.mute.Store(false)
	}
}

// keepEvery is how often keep looks whether there is something to be done.
const keepEvery = 100 * time.Millisecond

// keep starts the goroutine that takes out of the target what could not be taken out where
// it became due: probes whose handlers went wrong, stuck ones, and instances of calls that are
// over. It runs while there are probes with handlers or on returns. Precondition: mu is held.
func (c *Core) keep() {
	if c.keeping {
		return
	}
	c.keeping = true
	go func() {
		for seen := uint64(0); ; {
			time.Sleep(keepEvery)
			c.mu.Lock()
			if n := c.faults.Load(); n != seen || len(c.stuck) > 0 {
				if c.tidy() {
					seen = n
				}
			}
			c.takeBack()
			c.syncStubs()
			c.keepWatching()
			c.keeping = c.needsKeep()
			done := !c.keeping
			c.mu.Unlock()
			if done {
				return
			}
		}
	}()
}

// needsKeep says whether keep may have something to do.
func (c *Core) needsKeep() bool {
	if c.shut {
		return false
	}
	return len(c.reaping.left) > 0 || c.watches() || slices.ContainsFunc(c.events, func(e *Event) bool {
		return e != nil && (e.h != nil || !e.ended && e.work.Pool != nil)
	})
}

// tidy disarms what went wrong; false: it is to be tried again.
func (c *Core) tidy() bool {
	var bad []*probe
	for _, e := range c.events {
		if e != nil && e.h != nil && !e.ended && !e.h.disabled && e.h.fault.is() {
			bad = append(bad, e.h)
		}
	}
	c.tidying = true
	defer func() { c.tidying = false }()
	ok := len(bad) == 0 || c.setDisabled(bad, true, false) == nil
	if len(c.stuck) == 0 {
		return ok
	}
	err := c.update(functionsOf(eventsOf(c.stuck)), nil)
	if err != nil && !errors.Is(err, target.ErrGone) {
		return false
	}
	for _, p := range c.stuck {
		p.finish()
	}
	c.stuck = nil
	return ok
}

// closeProbes ends the probes when the Core is closed; left is what has not been taken out.
func (c *Core) closeProbes(live []*Event, left bool) {
	for _, e := range live {
		if e.h == nil {
			continue
		}
		e.h.ended.Store(true)
		e.h.off.Store(left)
		if !left {
			e.h.finish()
		}
	}
	for _, p := range c.stuck {
		if !left {
			p.finish()
		}
	}
	c.stuck, c.reaping.left, c.shut = nil, nil, true // pools go with the target
}

// idle says whether no code of ours is to stand at the event's points.
func (e *Event) idle() bool {
	return e.held != nil || e.withdrawn != nil || e.h != nil && e.h.disabled || e.core != nil && e.core.off && !e.hook
}

// unoptimised are the points of a function at which breakpoints are to stand.
func (f *function) unoptimised() []uint64 {
	if f.core == nil || f.jumpOnly || f.wish.force != "" || f.noTraps() != nil {
		return nil
	}
	if f.core.straight || f.late != nil {
		return f.points()
	}
	return nil
}

// settle tells the event's handlers what they may do now.
func (e *Event) settle() {
	if e.h != nil {
		e.h.optimised.Store(e.form.tactic == arch.TacticJump && e.plain() == nil)
	}
}

// plain says why an event is not optimised as Linux says it, though a jump leads to its handlers: a
// changed path is taken; nil: it is optimised.
func (e *Event) plain() error {
	switch {
	case e.core == nil || e.fn == nil:
		return nil
	case e.core.straight:
		return errStraight
	case e.posts() > 0:
		return errPost
	case e.fn.posts == 0:
		return nil
	}
	for _, o := range e.fn.events {
		if o.posts() > 0 && !o.idle() && slices.ContainsFunc(o.points, func(p uint64) bool { return slices.Contains(e.points, p) }) {
			return errBesides
		}
	}
	return nil
}
