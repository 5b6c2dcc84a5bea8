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
	seq      int  // of the next event that is registered
	off      bool // SetEnabled(false)
	straight bool // SetOptimization(false)
	barred   map[uint64]symbol.Resolved
	spare    []int    // numbers of probes that were unregistered, the oldest first
	idle     []*Event // events that only counted and were removed, with their numbers
	returned []int    // those of return probes: instances may still have them
	catcher  *Event   // the engine's own probe that catches panics of handlers; nil: none yet
	reap     []leftover
	stuck    []*probe      // unregistered, but their code could not be taken out yet
	keeping  bool          // keep runs
	faults   atomic.Uint64 // of handlers, since Open
	ending   atomic.Int32  // goroutines that wait for handlers to end
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

// registerAll registers probes that are made by a kind's check: all or none.
func registerAll[T any](c *Core, items []T, check func(T) (*probe, error)) error {
	if err := c.outside(); err != nil {
		return err
	}
	if len(items) == 0 {
		return errno.Errorf(unix.EINVAL, "no probes to register")
	}
	ps := make([]*probe, len(items))
	for i, it := range items {
		p, err := check(it)
		if err != nil {
			return numbered(err, i, len(items))
		}
		p.core, ps[i] = c, p
	}
	return c.register(ps)
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
	for i, p := range ps {
		old := p.kp.raw()
		if old != nil && old.kp == p.kp && !old.ended.Load() || !p.kp.swap(old, p) {
			disown(ps[:i])
			return numbered(errRegistered(p.kp), i, len(ps))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.put(ps); err != nil {
		disown(ps)
		return err
	}
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
	for i, p := range ps {
		if err := c.place(p, ps[:i]); err != nil {
			return numbered(plain(err), i, len(ps))
		}
	}
	if err := c.t.Prepare(); err != nil {
		return err
	}
	evs := make([]*Event, len(ps))
	for i, p := range ps {
		evs[i] = p.ev
	}
	evs, err := c.guard(evs)
	if err != nil {
		return err
	}
	err = c.number(evs)
	for i := 0; err == nil && i < len(ps); i++ {
		if err = c.pool(evs[i]); err == nil {
			err = ps[i].bind()
		}
		err = wrapNonNil(err, i, len(ps))
	}
	undo := tell(ps)
	if err == nil {
		_, err = c.arm(evs, &AddOptions{})
	}
	if err != nil {
		undo()
		c.forget(evs)
		for _, p := range ps {
			p.finish()
		}
		return plain(err)
	}
	return nil
}

// tell writes the probes' addresses and flags for their handlers, which may run as soon as
// they are armed. undo takes it back.
func tell(ps []*probe) (undo func()) {
	old := make([]Kprobe, len(ps))
	for i, p := range ps {
		old[i].Addr, old[i].Flags = p.kp.Addr, p.kp.Flags
		p.kp.Addr, p.kp.Flags = p.ev.Place.Addr, p.flags
	}
	return func() {
		for i, p := range ps {
			p.kp.Addr, p.kp.Flags = old[i].Addr, old[i].Flags
		}
	}
}

func wrapNonNil(err error, i, n int) error {
	if err == nil {
		return nil
	}
	return numbered(err, i, n)
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
	e.work.Count = true
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

// leftover is a pool in which a return probe that was unregistered may have left instances:
// of calls that were in progress, or have been left by unwinding.
type leftover struct {
	id   int
	pool *arch.Pool
}

// sweep gives back the instances that return probes of the own process have left. The
// target takes pools back that served one probe.
func (c *Core) sweep() {
	pools := map[*arch.Pool]map[int]bool{}
	for _, l := range c.reap {
		if pools[l.pool] == nil {
			pools[l.pool] = map[int]bool{}
		}
		pools[l.pool][l.id] = true
	}
	for p, ids := range pools {
		clearSlots(p, ids)
		c.endPool(p)
	}
	c.reap = nil
}

// endPool gives a pool back that no probe's code uses any more.
func (c *Core) endPool(p *arch.Pool) {
	if t, ok := c.t.(interface{ EndPool(*arch.Pool) }); ok {
		t.EndPool(p)
	}
}

// settle keeps what removed events have counted and makes their numbers spare, if no thread
// can still count for them.
func (c *Core) settle() {
	if t, ok := c.t.(interface{ Idle() bool }); !ok || !t.Idle() {
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

// sift makes those numbers of return probes spare that no instance has any more.
func (c *Core) sift() {
	active, unwound, err := c.t.Instances()
	if err != nil {
		return
	}
	c.returned = slices.DeleteFunc(c.returned, func(id int) bool {
		if active[id]+unwound[id] > 0 {
			return false
		}
		c.spare = append(c.spare, id)
		return true
	})
}

// retire forgets the event of a probe that is not armed any more. Its number may serve
// again, and what it has left in its pool is given back.
func (c *Core) retire(e *Event) {
	if e.ID >= len(c.events) || c.events[e.ID] != e {
		return // it got no number
	}
	switch {
	case e.work.Pool == nil:
	case isSelf(c.t):
		c.reap = append(c.reap, leftover{e.ID, e.work.Pool})
	default:
		c.endPool(e.work.Pool)
	}
	c.events[e.ID] = nil
	if e.Def.Kind == event.Return {
		c.returned = append(c.returned, e.ID)
	} else {
		c.spare = append(c.spare, e.ID)
	}
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
	err := c.remove(evs, nil)
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
		p.off.Store(true)
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
	var old *calls
	if on && p.off.Load() {
		o, err := p.renew()
		if err != nil {
			return err
		}
		old = &o
	}
	err := c.setDisabled([]*probe{p}, !on)
	if old != nil {
		if err == nil {
			c.end(old)
		} else {
			p.off.Store(true)
		}
	}
	return err
}

// anew makes return probes that are to be armed again forget the calls that were in progress
// when they were disarmed: their returns were not seen, and another call has the same place on
// the same stack by now.
func (c *Core) anew(ps []*probe) {
	ps = slices.DeleteFunc(slices.Clone(ps), func(p *probe) bool { return p.kind != kindKretprobe })
	if len(ps) == 0 {
		return
	}
	t, ok := c.t.(interface{ Idle() bool })
	for end := time.Now().Add(anewWait); ok && !t.Idle() && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a thread in the old code may still take an instance
	}
	for _, p := range ps {
		p.epoch.Add(1)
		if p.local && p.ev.work.Pool != nil {
			clearSlots(p.ev.work.Pool, map[int]bool{p.ev.ID: true})
		}
	}
}

// anewWait bounds the waiting for threads that are in the code of probes that were disarmed.
const anewWait = time.Second

// setDisabled arms or disarms probes in one stop, or changes nothing.
func (c *Core) setDisabled(ps []*probe, disabled bool) error {
	was := make([]bool, len(ps))
	for i, p := range ps {
		was[i], p.disabled = p.disabled, disabled
	}
	if !disabled {
		c.anew(ps)
	}
	if err := c.update(functionsOf(eventsOf(ps)), nil); err != nil {
		for i, p := range ps {
			p.disabled = was[i]
		}
		return plain(err)
	}
	for _, p := range ps {
		p.flags &^= FlagDisabled
		if disabled {
			p.flags |= FlagDisabled
		}
		p.kp.Flags = p.flags
	}
	return nil
}

// keepEvery is how often keep looks whether there is something to be done.
const keepEvery = 100 * time.Millisecond

// keep starts the goroutine that takes out of the target what could not be taken out where
// it became due: probes whose handlers went wrong, and stuck ones. It runs while there are
// probes. Precondition: mu is held.
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
			c.sweep()
			if len(c.reap) == 0 && !slices.ContainsFunc(c.events, func(e *Event) bool { return e != nil && e.h != nil }) {
				c.keeping = false
			}
			done := !c.keeping
			c.mu.Unlock()
			if done {
				return
			}
		}
	}()
}

// tidy disarms what went wrong; false: it is to be tried again.
func (c *Core) tidy() bool {
	var bad []*probe
	for _, e := range c.events {
		if e != nil && e.h != nil && !e.ended && !e.h.disabled && e.h.fault.err() != nil {
			bad = append(bad, e.h)
		}
	}
	ok := len(bad) == 0 || c.setDisabled(bad, true) == nil
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
	c.stuck, c.reap = nil, nil // pools go with the target
}

// idle says whether no code of ours is to stand at the event's points.
func (e *Event) idle() bool {
	return e.held != nil || e.h != nil && e.h.disabled || e.core != nil && e.core.off && !e.hook
}

// unoptimised are the points of a function at which breakpoints are to stand.
func (f *function) unoptimised() []uint64 {
	if f.core == nil || f.jumpOnly || f.policy.Force != "" || f.policy.Traps != nil {
		return nil
	}
	if f.core.straight {
		return f.points()
	}
	var out []uint64
	for _, e := range f.events {
		if e.h != nil && e.h.post != nil && !e.idle() {
			out = append(out, e.points...)
		}
	}
	return out
}

// settle tells the event's handlers how they get control now. A kernel takes no breakpoint of
// ours: what keeps a probe from being optimised does not change its tactic there, but what its
// handlers may do.
func (e *Event) settle() {
	if e.h == nil {
		return
	}
	plain := e.core != nil && e.core.t.Writer().Kernel != nil && (e.h.post != nil || e.core.straight)
	e.h.optimised.Store(e.Tactic == arch.TacticJump && !plain)
}
