package engine

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// A watchpoint is an event without a function: it stands in no code. The processor holds it, and its records come with those of
// the probes that the kernel holds.

// defaultLen is how many bytes are watched where nothing says how many, as in the kernel.
const defaultLen = 4

// watches says whether the event is a watchpoint.
func (e *Event) watches() bool { return e.Def != nil && e.Def.Kind == event.Watch }

// elsewhere says whether the event's place is in an object, which may go, and not in the program itself.
func (e *Event) elsewhere() bool { return e.Place.Module != nil && !e.Place.Module.Main }

// resolve finds the place of a definition.
func (c *Core) resolve(d *event.Def) (symbol.Resolved, error) {
	if d.Kind == event.Watch {
		return c.resolveWatched(d)
	}
	return c.t.Space().Resolve(placeOf(d))
}

// resolveWatched finds what is watched: a variable, or a function, by its name, or an address: one that is mapped, or as nm
// prints it. It need not belong to an object.
func (c *Core) resolveWatched(d *event.Def) (r symbol.Resolved, err error) {
	s, p := c.t.Space(), d.Place
	switch {
	case p.Kind == event.PlaceAddr && p.Module != "":
		m, err := s.Module(p.Module)
		if err != nil {
			return r, err
		}
		r.Addr = m.Runtime(p.Addr)
	case p.Kind == event.PlaceAddr:
		r.Addr = p.Addr
		if m := s.Main(); m != nil && s.ModuleAt(p.Addr) == nil && slices.ContainsFunc(m.Image.Segments(), func(g symbol.Segment) bool { return g.Contains(p.Addr) }) {
			r.Addr = m.Runtime(p.Addr)
		}
	case p.Kind != event.PlaceSymbol:
		return r, errno.Errorf(unix.EINVAL, "name what is watched by its symbol or its address")
	default:
		_, at, err := s.Data(p.Module, p.Symbol)
		if err != nil {
			return r, err
		}
		r.Addr = at + p.Offset
	}
	r.Vaddr = r.Addr
	if r.Module = s.ModuleAt(r.Addr); r.Module != nil {
		r.Vaddr = r.Module.Linktime(r.Addr)
	}
	return r, nil
}

// locateWatch ties a watchpoint to what it watches, and makes its program.
func (c *Core) locateWatch(e *Event, r symbol.Resolved) error {
	d := e.Def
	switch {
	case d.Stack > 0:
		return e.refused(errno.Errorf(unix.EOPNOTSUPP, "a watchpoint records no stack"))
	case e.work.Count && d.Filter != "":
		return errno.Errorf(unix.EOPNOTSUPP, "filter %q: a watchpoint that only counts knows no filter; record it", d.Filter)
	}
	e.Place, e.watched = r, &target.Watch{Addr: r.Addr, Len: c.watchedLen(d), Access: d.Watched.Access}
	if n := uint64(e.watched.Len); n > 0 && r.Addr%n != 0 {
		return d.Refuse(event.BadProbeAddr, d.Place.Pos, "", errno.Errorf(unix.EINVAL, "0x%x is no multiple of the length %d, as the processor wants it: watch fewer bytes", r.Addr, n))
	}
	if e.work.Count {
		return nil
	}
	prog, err := fetch.Compile(d, &watchEnv{env{ABI: c.t.Arch().ABI(false, false), c: c, m: r.Module}, r.Addr}, fetch.PointInside)
	if err != nil {
		return err
	}
	e.Prog, e.work.Prog = prog, prog
	if d.Filter == "" {
		return nil
	}
	err = c.compileFilter(e)
	e.work.Filter = nil // whoever reads the records runs it
	return err
}

// watchedLen is how many bytes a definition watches: what it says, else the size of its symbol if that can be watched; of an
// instruction none.
func (c *Core) watchedLen(d *event.Def) int {
	switch {
	case d.Watched.Access == event.Execute:
		return 0
	case d.Watched.Len > 0:
		return d.Watched.Len
	case d.Place.Kind == event.PlaceSymbol && d.Place.Offset == 0:
		s, _, err := c.t.Space().Data(d.Place.Module, d.Place.Symbol)
		if err == nil && (s.Size == 1 || s.Size == 2 || s.Size == 8) {
			return int(s.Size)
		}
	}
	return defaultLen
}

// watchEnv is the env of a watchpoint.
type watchEnv struct {
	env
	addr uint64
}

// Watched is what $addr stands for.
func (v *watchEnv) Watched() uint64 { return v.addr }

// holdWatch arms a watchpoint.
func (c *Core) holdWatch(e *Event) error {
	w := *e.watched
	w.Event, w.Prog, w.Args = e.ID, e.Prog, e.argsOffset(c.t.CodegenEnv())
	h, err := c.can.Watcher.Watch(&w)
	if errors.Is(err, unix.ENOSPC) {
		err = errno.Errorf(unix.ENOSPC, "%w: %s; take one out first", err, c.watchHolders())
	}
	if err != nil {
		return err
	}
	e.held = h
	e.become(armedAs{tactic: arch.TacticWatch})
	return nil
}

// watchHolders says who holds the processor's watchpoints.
func (c *Core) watchHolders() string {
	const others = "a debugger, perf or another tracer"
	var own []string
	for _, e := range c.events {
		if e != nil && !e.ended && e.watches() && e.held != nil {
			own = append(own, e.Name)
		}
	}
	if len(own) == 0 {
		return "by " + others
	}
	return "by " + strings.Join(own, ", ") + " here, and the rest, if any, by " + others
}

// dropWatches ends the watchpoints whose object is not mapped any more.
func (c *Core) dropWatches() {
	for _, e := range c.events {
		if e == nil || e.ended || e.gone || !e.watches() || e.Place.Module == nil {
			continue
		}
		if m := c.t.Space().ModuleAt(e.Place.Addr); m == nil || m.Image != e.Place.Module.Image {
			e.release()
			e.gone = true
		}
	}
}
