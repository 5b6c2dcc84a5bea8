package engine

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// defineLine makes an event for each place at which a line of the source begins.
func (c *Core) defineLine(d *event.Def, o *AddOptions) ([]*Event, error) {
	m, at, err := c.statements(d.Place.Path, d.Place.Line)
	if err != nil {
		return nil, d.Refuse(event.NoLineTable, d.Place.Pos, "", err)
	}
	var out []*Event
	for _, pc := range at {
		e, err := c.definePlace(d, m, pc, "", len(at) > 1, o)
		switch {
		case err == nil:
			out = append(out, e)
		case len(at) == 1, o.Skip == nil, errors.Is(err, target.ErrGone):
			return nil, err
		default:
			c.skip(d, c.nameAt(m, pc), err, o)
		}
	}
	if len(out) == 0 {
		return nil, c.allSkipped(d)
	}
	return out, nil
}

// definePlace makes an event of a definition at a link-time address, one of several if many is set. inlined is the function whose call
// was inlined there, "" if that is not what is meant. Precondition: a pattern has many, and inlined.
func (c *Core) definePlace(d *event.Def, m *symbol.Module, pc uint64, inlined string, many bool, o *AddOptions) (*Event, error) {
	def := *d
	def.Place = event.Place{Kind: event.PlaceAddr, Addr: pc, Pos: d.Place.Pos}
	if !m.Main {
		def.Place.Module = m.Name
	}
	e := newEvent(&def, c, o)
	e.Given, e.oneOf, e.inlined = d, many, inlined
	r := symbol.Resolved{Module: m, Vaddr: pc, Addr: m.Runtime(pc)}
	r.Func, r.Offset, _ = m.Image.At(pc)
	if err := c.locate(e, r); err != nil {
		return nil, err
	}
	if !many {
		if e.Name == "" {
			e.Name = c.namer(d).Name(d, d.Place)
			return e, nil
		}
		return e, c.name(e)
	}
	named := *d
	if d.Place.Glob {
		named.Name, named.Place.Glob, named.Place.Symbol = "", false, inlined
	}
	e.Name = c.namer(d).Unique(cmp.Or(named.Name, named.BaseName(named.Place)))
	return e, nil
}

// nameAt names the instruction at a link-time address.
func (c *Core) nameAt(m *symbol.Module, pc uint64) string {
	s, ok := c.Symbol(m.Runtime(pc))
	if !ok {
		return m.Name
	}
	return s.Name
}

// statements finds the addresses at which a line begins, in the first object that has the file.
func (c *Core) statements(file string, line int) (*symbol.Module, []uint64, error) {
	var why error
	for _, m := range c.t.Space().Modules() {
		f, err := debugInfo(m.Image)
		if err != nil {
			why = cmp.Or(why, err)
			continue
		}
		at, err := f.Statements(file, line)
		switch {
		case err == nil:
			at = slices.DeleteFunc(at, func(pc uint64) bool { return !m.Image.Executable(pc) })
			if len(at) > 0 {
				return m, at, nil
			}
		case !errors.Is(err, debuginfo.ErrNone):
			return nil, nil, errno.Errorf(unix.ENOENT, "%w", err)
		}
		why = err
	}
	return nil, nil, errno.Errorf(unix.ENOENT, "%w", cmp.Or(why, debuginfo.ErrNone))
}
