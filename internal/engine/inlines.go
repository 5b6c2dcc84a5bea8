package engine

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Inlines says whether a probe on a function stands at its inlined calls too.
type Inlines uint8

// The choices: never; where the debug information is not so large that looking for them takes long; always.
const (
	InlinesNone Inlines = iota
	InlinesAuto
	InlinesAll
)

// maxInlinesSize bounds the debug information that InlinesAuto looks through, in bytes of its file.
const maxInlinesSize = 64 << 20

// inlinesOf finds where calls of a definition's function were inlined, in an object.
func (c *Core) inlinesOf(d *event.Def, m *symbol.Module, o *AddOptions) ([]uint64, error) {
	if o.Inlines == InlinesNone || d.Kind != event.Probe || d.Place.Kind != event.PlaceSymbol || d.Place.Offset != 0 || m == nil || c.t.CodegenEnv().Kernel != nil {
		return nil, nil
	}
	if n := m.Image.DebugSize(); n == 0 {
		return nil, nil
	} else if o.Inlines == InlinesAuto && n > maxInlinesSize {
		return nil, errno.Errorf(unix.EFBIG, "calls that were inlined are not looked for in %d MB of debug information unless it is asked for", n>>20)
	}
	f, err := c.debug.of(m.Image)
	if err != nil {
		return nil, err
	}
	want := d.Place.Symbol
	return f.Inlined(func(name, linkage string) bool {
		if linkage == "" {
			return name == want
		}
		return linkage == want || symbol.Demangle(linkage) == want
	})
}

// withInlines adds to the event of a function, which may be none, those at its inlined calls. One that can not be made is left out.
func (c *Core) withInlines(d *event.Def, whole *Event, m *symbol.Module, at []uint64, o *AddOptions) ([]*Event, error) {
	var out []*Event
	if whole != nil {
		out = append(out, whole)
	}
	for _, pc := range at {
		e, err := c.definePlace(d, m, pc, d.Place.Symbol, true, o)
		switch {
		case err == nil:
			out = append(out, e)
		case o.Skip == nil, errors.Is(err, target.ErrGone):
			return nil, err
		default:
			c.skip(d, fmt.Sprintf("%s, inlined in %s", d.Place.Symbol, c.nameAt(m, pc)), err, o)
		}
	}
	if len(out) == 0 {
		return nil, c.allSkipped(d)
	}
	return out, nil
}

// Inlined is the function whose call was inlined where the event stands; "": it stands at no such call.
func (e *Event) Inlined() string { return e.inlined }
