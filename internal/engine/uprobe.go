package engine

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// serve finds how an event gets control: by a region beside those of the function's other
// events, else by a probe that the kernel holds. One of these is armed at once.
func (c *Core) serve(e *Event) error {
	var why error
	if e.watches() {
		if err := c.hold(e); err != nil {
			return e.refused(err)
		}
		return nil
	}
	if !e.force.Held() {
		if why = c.returnsElse(e, e.fn.serves(e)); why == nil {
			why = c.loads(e)
		}
		if why == nil {
			return nil
		}
	} else if no := e.fn.serves(e); errors.Is(no, arch.ErrUnprobeable) {
		return e.refused(no)
	}
	if err := c.fallBackToUprobe(e, why); err != nil {
		return e.refused(err)
	}
	return nil
}

// loads says why generated code can not read the memory that an event's arguments lie in.
func (c *Core) loads(e *Event) error {
	if err := c.t.Loads(); err != nil && e.Prog.Loads() {
		return fmt.Errorf("an argument reads memory: %w", err)
	}
	return nil
}

// fallBackToUprobe has the kernel hold the probe of an event that no tactic of the engine's can serve, and why.
// Functions that a pattern happens to match are left alone: a slow probe on the busiest of
// them is not what was asked for.
func (c *Core) fallBackToUprobe(e *Event, why error) error {
	switch {
	case why == nil:
	case e.h != nil:
		return why
	case e.force != "" || e.internalProbe || errors.Is(why, arch.ErrUnprobeable):
		return why
	case e.oneOf:
		return fmt.Errorf("%w; the slowest tactic would fit (uprobe, in a guest break): it takes microseconds a hit and more, and only a probe that names the function gets it", why)
	}
	switch err := c.hold(e); {
	case err != nil && why == nil:
		return err // its tactic was asked for
	case err != nil:
		return errors.Join(why, fmt.Errorf("nor by the slowest tactic (uprobe, in a guest break): %w", err))
	}
	e.become(armedAs{e.held.Tactic(), why})
	e.unlink()
	return nil
}

// fallBackToUprobeAt has the kernel hold the probes of a function's new events that stand where no generated code
// can: why names the instruction. No error says that the function is to be tried again
// without them; else e is the event that can not be served, if it is one of these.
func (c *Core) fallBackToUprobeAt(evs []*Event, why error) (e *Event, err error) {
	var at *arch.PointError
	if !errors.As(why, &at) {
		return nil, why
	}
	err = why
	for _, e := range evs {
		if e.held != nil || !slices.Contains(e.points, at.Addr) {
			continue
		}
		if err = c.fallBackToUprobe(e, why); err != nil {
			return e, err
		}
	}
	return nil, err
}

// hold has the kernel hold an event's probe.
func (c *Core) hold(e *Event) error {
	if e.watches() {
		return c.holdWatch(e)
	}
	if e.Def.Kind == event.Return {
		return errno.Errorf(unix.EOPNOTSUPP, "the kernel's return probe would change the return address on the stack")
	}
	if recordsStack(e) {
		return errno.Errorf(unix.EOPNOTSUPP, "a probe that the kernel holds records no stack")
	}
	if e.work.CountPassing {
		return errno.Errorf(unix.EOPNOTSUPP, "filter %q: a probe that only counts is counted there without its filter; record it", e.Def.Filter)
	}
	at := e.points[0]
	for _, s := range e.fn.sites {
		if covers(s, at) {
			return errno.Errorf(unix.EBUSY, "0x%x: another probe of ours covers it, remove that first", at)
		}
	}
	h, err := c.t.Uprobe(&target.Uprobe{Addr: at, Event: e.ID, Prog: e.Prog, Args: e.argsOffset(c.t.CodegenEnv()), Asked: e.force.Held()})
	e.held, c.watching.stale = h, true // a private copy of text goes back to its file for it
	return err
}

// covers says whether an instruction's bytes are patched, or run as a copy.
func covers(s *target.Site, at uint64) bool {
	return at-s.Addr < uint64(len(s.Patch)) || slices.ContainsFunc(s.Detour.Pairs, func(p arch.Pair) bool { return p.Orig == at })
}
