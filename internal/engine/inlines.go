package engine

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// maxInlinesSize bounds the debug information that InlinesAuto looks through, in bytes of its file.
const maxInlinesSize = 64 << 20

// inlinedCall is a call that was inlined.
type inlinedCall struct {
	of string // the function
	pc uint64 // where it begins, at link time
}

// inlinesOf finds where calls of a definition's function, or of the functions of its pattern, were inlined, in an object. Those of a
// pattern may be very many, and have to be asked for.
func (c *Core) inlinesOf(d *event.Def, m *symbol.Module, o *AddOptions) ([]inlinedCall, error) {
	if o.Inlines == InlinesNone || o.Inlines == InlinesAuto && d.Place.Glob || d.Kind == event.Watch || d.Place.Kind != event.PlaceSymbol || d.Place.Offset != 0 || m == nil || c.t.CodegenEnv().Kernel != nil {
		return nil, nil
	}
	if n := m.Image.DebugSize(); n == 0 {
		return nil, nil
	} else if o.Inlines == InlinesAuto && n > maxInlinesSize {
		return nil, errno.Errorf(unix.EFBIG, "calls that were inlined are not looked for in %d MB of debug information unless it is asked for", n>>20)
	}
	f, err := debugInfo(m.Image)
	if err != nil {
		return nil, err
	}
	want := d.Place.Symbol
	is := func(name string) bool { return name == want || d.Place.Glob && symbol.MatchGlob(want, name) }
	found, err := f.Inlined(func(name, linkage string) bool {
		if linkage == "" {
			return is(name)
		}
		return is(linkage) || is(symbol.Demangle(linkage))
	})
	calls := make([]inlinedCall, len(found))
	for i := range found {
		one := &found[i]
		switch calls[i] = (inlinedCall{want, one.PC}); {
		case !d.Place.Glob:
		case one.Linkage != "":
			calls[i].of = symbol.Demangle(one.Linkage)
		default:
			calls[i].of = one.Name
		}
	}
	return slices.Compact(calls), err
}

// atInlined makes the events of a definition at inlined calls. One that can not be made is left out.
func (c *Core) atInlined(d *event.Def, m *symbol.Module, calls []inlinedCall, o *AddOptions) (out []*Event, err error) {
	for _, call := range calls {
		e, err := c.definePlace(d, m, call.pc, call.of, true, o)
		switch {
		case err == nil:
			out = append(out, e)
		case o.Skip == nil, errors.Is(err, target.ErrGone):
			return nil, err
		default:
			c.skip(d, fmt.Sprintf("%s, inlined in %s", call.of, c.nameAt(m, call.pc)), err, o)
		}
	}
	return out, nil
}

// errNoReturn: what is inlined returns nowhere.
var errNoReturn = errors.New("an inlined call has no return: probe that of the function around it, or the inlined call itself (p)")

// onlyInlined makes the events of a function of which there is no code but its inlined calls; missing is the error for its name where
// there are none.
func (c *Core) onlyInlined(d *event.Def, missing error, o *AddOptions) ([]*Event, error) {
	m, err := c.t.Space().Module(d.Place.Module)
	if err != nil {
		return nil, missing
	}
	calls, _ := c.inlinesOf(d, m, o) // what can not be looked at has none
	switch {
	case len(calls) == 0:
		return nil, missing
	case d.Kind == event.Return:
		return nil, d.Refuse(event.BadProbeAddr, d.Place.Pos, "", fmt.Errorf("%s exists only inlined, and %w", printable(d.Place.Symbol), errNoReturn))
	}
	evs, err := c.atInlined(d, m, calls, o)
	if err == nil && len(evs) == 0 {
		err = c.allSkipped(d)
	}
	return evs, err
}

// withInlined makes the events at the inlined calls of a function, or of a pattern's functions, which has others.
func (c *Core) withInlined(d *event.Def, m *symbol.Module, o *AddOptions) ([]*Event, error) {
	calls, why := c.inlinesOf(d, m, o)
	if d.Kind == event.Return {
		if len(calls) > 0 && o.Skip != nil {
			o.Skip(fmt.Sprintf("%s (inlined calls: %d)", d.Place.Symbol, len(calls)), errNoReturn)
		}
		return nil, nil
	}
	if why != nil && o.Skip != nil {
		o.Skip(d.Place.Symbol, why)
	}
	return c.atInlined(d, m, calls, o)
}

// Inlined is the function whose call was inlined where the event stands; "": it stands at no such call.
func (e *Event) Inlined() string { return e.inlined }
