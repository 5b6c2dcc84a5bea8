package engine

import (
	"fmt"

	"kprobes.dev/kprobes/internal/target"
)

// yield takes all probes out while a debugger is attached to the target: its breakpoints may fall into
// their patches. When it has gone they are armed again. The error says what was done, once. A probe on an
// unwinder stays: without it the return addresses that are replaced would lead exceptions astray.
func (c *Core) yield() error {
	t := c.can.Yielder
	if t == nil || len(c.fns) == 0 {
		return nil
	}
	who := t.Tracer()
	if who == "" {
		if !c.yielded {
			return nil
		}
		c.yielded = false
		var fns []*function
		for _, f := range sortedFunctions(c.armed()) {
			if c.stubbed.walkers[f.Start] == nil {
				fns = append(fns, f)
			}
		}
		check := func() error { // what the probes would have told that were out: they are in again
			if c.can.Sharer == nil || len(c.sharing) == 0 {
				return nil
			}
			return c.can.Sharer.CheckOwn()
		}
		if err := c.update(fns, stopping{then: check}); err != nil {
			c.yielded = true // once more at the next Sync
			return c.once(err)
		}
		c.why = ""
		return fmt.Errorf("the debugger has gone: all probes are armed again")
	}
	var sites []*target.Site
	for f := range c.armed() {
		if c.stubbed.walkers[f.Start] == nil {
			sites = append(sites, f.sites...)
		}
	}
	done, err := t.Yield(sites)
	if done { // each time: something may have come since
		for f := range c.armed() {
			if c.stubbed.walkers[f.Start] == nil {
				f.lapse()
			}
		}
	}
	if err != nil || !done || c.yielded {
		return c.once(err)
	}
	c.yielded = true
	return fmt.Errorf("%s has attached: all probes are taken out until it goes, for its breakpoints could fall into them", who)
}

// debugged says whether a debugger is attached, so that nobody else can stop the target.
func (c *Core) debugged() bool { return c.can.Yielder != nil && c.can.Yielder.Tracer() != "" }

// once is an error that was not the last one already.
func (c *Core) once(err error) error {
	if err == nil || err.Error() == c.why {
		return nil
	}
	c.why = err.Error()
	return err
}

// armed are the functions that have generated code.
func (c *Core) armed() map[*function]bool {
	out := map[*function]bool{}
	for _, f := range c.fns {
		if len(f.sites) > 0 {
			out[f] = true
		}
	}
	return out
}
