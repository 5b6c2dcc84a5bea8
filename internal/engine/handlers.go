package engine

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// handlers is the part of a Core that serves Kprobes, Kretprobes and Jprobes.
type handlers struct {
	seq             int         // of the next event that is registered
	off             bool        // SetEnabled(false)
	optimizationOff bool        // SetOptimization(false)
	forced          arch.Tactic // ForceTactic
	barred          map[uint64]symbol.Resolved
	freeIDs         []int    // numbers of probes that were unregistered, the oldest first
	freeCounters    []*Event // events that only counted and were removed, with their numbers
	coolingIDs      []int    // likewise, but a thread may still be in their code
	returnIDs       []int    // those of return probes: instances may still have them
	guards          []*Event // the engine's own probes that watch over handlers; none: there was no handler yet
	reaping         reaping
	stuck           []*Probe           // unregistered, but their code could not be taken out yet
	pendingRemoval  map[*function]bool // see owing
	pendingIdle     []*Event           // events that only counted, of these
	pendingInFlight []*Event           // those that may have instances
	tidying         bool               // disableFaulted runs, for the reaper
	keeping         bool               // the reaper runs
	shut            bool               // the Core is closed
	faults          atomic.Uint64      // of handlers, since Open
	ending          atomic.Int32       // goroutines that wait for handlers to end
}

// isGo says whether a function takes its arguments as Go does.
func isGo(fn *symbol.Func) bool { return fn.Lang == symbol.LangGo }

// inHandler says whether a handler of this target's probes calls.
func (c *Core) inHandler() bool {
	return c.can.InHandler != nil && c.can.InHandler()
}

// Outside refuses what a handler must not do.
func (c *Core) Outside() error {
	if c.inHandler() {
		return errno.Errorf(unix.EDEADLK, "called by a handler, which the change would have to wait for: do it after the handler, on a goroutine of its own")
	}
	return nil
}

func eventsOf(ps []*Probe) []*Event {
	out := make([]*Event, len(ps))
	for i, p := range ps {
		out[i] = p.ev
	}
	return out
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
