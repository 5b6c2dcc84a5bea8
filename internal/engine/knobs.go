package engine

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// SetEnabled arms or disarms all probes and events at once, in one stop of the target: kprobes/enabled.
func (c *Core) SetEnabled(on bool) error {
	if err := c.Outside(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.unlock()
	if c.off == !on {
		return c.unexceed(on)
	}
	var ps []*Probe
	for _, e := range c.events {
		if e != nil && !e.ended && e.h != nil && !e.h.disabled {
			ps = append(ps, e.h)
		}
	}
	calls := callsOf(slices.DeleteFunc(slices.Clone(c.events), func(e *Event) bool { return e == nil || e.ended || e.h != nil && e.h.disabled }))
	var then func() error
	if on {
		c.reclaimer.Rearm(calls)
		wake(ps)
	} else {
		then = c.reclaimer.InStop(calls)
	}
	c.off = !on
	fns := c.functions()
	if err := c.update(fns, stopping{then: then}); err != nil {
		c.off = on
		for _, p := range ps {
			p.h.Mute.Store(on)
		}
		c.requeueDisarmed(fns, err)
		return plain(err)
	}
	if !on {
		c.waitHandlers(ps)
	}
	return errors.Join(c.holdAll(on), c.unexceed(on))
}

// unexceed arms events that their budgets have disabled, if probes are to be armed.
func (c *Core) unexceed(on bool) error {
	if !on || c.budgets.again == nil {
		return nil
	}
	return c.budgets.again()
}

// Enabled says whether probes are armed.
func (c *Core) Enabled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.off
}

// holdAll has the kernel hold its probes, or not.
func (c *Core) holdAll(on bool) error {
	var errs []error
	for _, e := range c.events {
		switch {
		case e == nil || e.ended || e.gone || e.over != nil || !e.form.tactic.Held():
		case !on:
			e.release()
		case e.held == nil:
			errs = append(errs, c.hold(e))
		}
	}
	return errors.Join(errs...)
}

// SetOptimization says whether probes may be armed by jumps: debug.kprobes_optimization. See kprobes.Core.SetOptimization.
func (c *Core) SetOptimization(on bool) error {
	if err := c.Outside(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.unlock()
	if c.optimizationOff == !on {
		return nil
	}
	fns := c.functions()
	if !on && len(fns) > 0 {
		if err := c.t.Traps(); err != nil {
			return errno.Errorf(unix.EOPNOTSUPP, "probes can not be made breakpoints: %w", err)
		}
	}
	c.optimizationOff = !on
	for _, f := range fns {
		f.jumpOnly = false
	}
	mend := func(f *function, err error) error {
		if c := f.planConstraints(); !c.Traps() {
			return err
		}
		f.jumpOnly = true
		return nil
	}
	if err := c.updateOr(fns, mend, stopping{}); err != nil {
		c.optimizationOff = on
		return plain(err)
	}
	return nil
}

// Optimization says whether probes may be armed by jumps.
func (c *Core) Optimization() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.optimizationOff
}

// ForceTactic has probes with handlers that are registered from now on take a tactic (jump,
// boost or step) or none; "" stands for the best that is safe, as it is without. It is for
// measuring what the others cost, and for places that only a breakpoint can serve: a tactic that
// the target does not allow makes the registration fail. In another process a thread that comes to
// block SIGTRAP later dies of a breakpoint. EINVAL says that handlers know no such tactic.
func (c *Core) ForceTactic(t Tactic) error {
	if !slices.Contains([]Tactic{"", arch.TacticJump, arch.TacticBoost, arch.TacticStep}, t) {
		return errno.Errorf(unix.EINVAL, "tactic %q: handlers are called by jump, boost or step", string(t))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forced = t
	return nil
}

// functions lists those that have events other than the engine's own, in the order of their addresses.
func (c *Core) functions() []*function {
	fns := map[*function]bool{}
	for _, f := range c.fns {
		if slices.ContainsFunc(f.events, func(e *Event) bool { return !e.internalProbe }) {
			fns[f] = true
		}
	}
	return sortedFunctions(fns)
}

// NoKprobe puts a function on the blacklist, by its name. pc is the address of the function that has this name in this
// program: where the target has that too, the target's function there is meant. 0: there is none.
func (c *Core) NoKprobe(name string, pc uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.named(name, pc)
	if err != nil {
		return err
	}
	if r.Func == nil || r.Offset != 0 {
		return errno.Errorf(unix.EINVAL, "no function begins at 0x%x", r.Addr)
	}
	if c.barred == nil {
		c.barred = map[uint64]symbol.Resolved{}
	}
	c.barred[r.Addr] = r
	return nil
}

// named finds the function of a name, at pc first.
func (c *Core) named(name string, pc uint64) (symbol.Resolved, error) {
	if at, ok := c.t.Space().SymbolAt(pc); pc != 0 && ok && at.Off == 0 && at.Name == name {
		return symbol.Resolved{Module: at.Module, Func: at.Func, Vaddr: at.Func.Addr, Addr: pc}, nil
	}
	return c.t.Space().Resolve(symbol.Place{Sym: name})
}

// Blacklist writes the functions that no probe may stand in: see kprobes.Core.Blacklist.
func (c *Core) Blacklist(w io.Writer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	type entry struct {
		lo, hi uint64
		name   string
	}
	var out []entry
	for _, m := range c.t.Space().Modules() {
		for _, fn := range m.Image.Funcs() {
			r := symbol.Resolved{Module: m, Func: fn, Vaddr: fn.Addr, Addr: m.Runtime(fn.Addr)}
			if c.blacklisted(r) != nil {
				out = append(out, entry{r.Addr, r.Addr + fn.Size, printable(fn.Pretty())})
			}
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].lo < out[j].lo })
	for _, e := range out {
		if _, err := fmt.Fprintf(w, "0x%016x-0x%016x\t%s\n", e.lo, e.hi, e.name); err != nil {
			return err
		}
	}
	return nil
}
