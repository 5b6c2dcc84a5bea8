package engine

import (
	"errors"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/vars"
)

var (
	_ fetch.Namer      = (*env)(nil)
	_ fetch.Inliner    = (*env)(nil)
	_ fetch.ResultType = (*env)(nil)
	_ fetch.Caster     = (*env)(nil)
	_ fetch.Failer     = (*env)(nil)
	_ fetch.Carrier    = (*env)(nil)
)

// Name finds what a name of the program stands for.
func (v *env) Name(e *event.Expr, at fetch.Point) (*fetch.Var, error) {
	n, err := v.scope(at)
	if err != nil {
		return nil, err
	}
	return n.Name(e, at)
}

// Params lists the parameters of the function; inside of it those of the call that was inlined there, or the variables that can be
// named there.
func (v *env) Params(at fetch.Point, vars bool) ([]string, error) {
	n, err := v.scope(at)
	if err != nil {
		return nil, err
	}
	return n.Params(at, vars)
}

// Result finds what the result stands for, with the steps behind it, where the target tells its type.
func (v *env) Result(e *event.Expr) (*fetch.Var, error) {
	if v.c.can.Namer == nil {
		return nil, nil
	}
	n, err := v.scope(fetch.PointReturn)
	if t, ok := n.(fetch.ResultType); err == nil && ok {
		return t.Result(e)
	}
	return nil, err
}

// Cast finds what a typecast leads to, where the target knows types by their names.
func (v *env) Cast(e *event.Expr) (*fetch.Var, error) {
	if v.c.can.Namer == nil {
		return nil, nil
	}
	n, err := v.scope(fetch.PointInside)
	if t, ok := n.(fetch.Caster); err == nil && ok {
		return t.Cast(e)
	}
	return nil, err
}

// Failed gives the type of the last result, if it is an error of Go and debug information tells where it is.
func (v *env) Failed() *fetch.Var {
	if v.fn == nil || v.fn.Lang != symbol.LangGo {
		return nil
	}
	n, err := v.scope(fetch.PointReturn)
	if d, ok := n.(debugNames); err == nil && ok {
		return d.s.Failed()
	}
	return nil
}

var errNoChain = errors.New("nobody has said how contexts carry spans")

// TraceContexts has arguments of the type event.TraceContext that are contexts of Go record the spans that these carry.
func (c *Core) TraceContexts(find ChainFinder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.chains = find
}

// Carried gives the way from a context of the program to the span that it carries.
func (v *env) Carried() (any, error) {
	if v.c.chains == nil {
		return nil, errNoChain
	}
	f, err := debugInfo(v.m.Image)
	if err != nil {
		return nil, err
	}
	return v.c.chains(v.m, f)
}

// Inlined says whether the event stands where a call begins that was inlined.
func (v *env) Inlined() bool { return v.e.inlined != "" }

// debugNames are names by debug information.
type debugNames struct{ s *vars.Scope }

func (n debugNames) Name(e *event.Expr, at fetch.Point) (*fetch.Var, error) { return n.s.Find(e, at) }

func (n debugNames) Params(at fetch.Point, vars bool) ([]string, error) {
	if at == fetch.PointInside && !vars {
		return n.s.Inlined(), nil
	}
	return n.s.Names(), nil
}

// scope is what the target, or the debug information of the probed object, says of the function, or of the instruction in it.
func (v *env) scope(at fetch.Point) (fetch.Namer, error) {
	if v.names != nil {
		return v.names, nil
	}
	if n := v.c.can.Namer; n != nil {
		name := ""
		if p := &v.e.Def.Place; p.Kind == event.PlaceSymbol && p.Offset == 0 && !p.Glob {
			name = p.Symbol
		}
		v.names = n.Names(v.e.Place, name, v.ABI)
		return v.names, nil
	}
	f, err := debugInfo(v.m.Image)
	if err != nil {
		return nil, err
	}
	o := &vars.Options{File: f, Machine: objfile.Of(v.m.Image.Machine()), ABI: v.ABI, Runtime: v.m.Runtime, Symbol: v.Symbol}
	var s *vars.Scope
	if at == fetch.PointInside {
		s, err = vars.At(v.m.Linktime(v.at), v.c.ruleAt(v.e, v.at), o)
	} else {
		s, err = vars.New(v.fn, o)
	}
	if err != nil {
		return nil, err
	}
	v.names = debugNames{s}
	return v.names, nil
}

// debugInfo reads the debug information of an image, which is kept while it is used: for all Cores that have the image.
func debugInfo(im *symbol.Image) (*debuginfo.File, error) {
	kept, err := symbol.Derive(im, func() (*symbol.Kept[debuginfo.File], error) { return new(symbol.Kept[debuginfo.File]), nil })
	if err != nil {
		return nil, err
	}
	return kept.Get(func() (*debuginfo.File, error) { return debuginfo.New(im.DebugSection) })
}

// LeftOut tells which parameters $arg* does not record, and why.
func (e *Event) LeftOut() []fetch.LeftOut {
	e.knobs.mu.Lock()
	defer e.knobs.mu.Unlock()
	if e.Prog == nil {
		return nil
	}
	return e.Prog.LeftOut
}

// maxLineCache bounds the addresses that are remembered.
const maxLineCache = 1 << 16

// Lines tells where in the source the instruction at a run-time address comes from, the innermost function that was inlined there
// first; none: no debug information tells it. It may be called at any time.
func (c *Core) Lines(addr uint64) []fetch.Line {
	space := c.space.Load()
	if space == nil {
		return nil
	}
	l := &c.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in != space || len(l.at) >= maxLineCache {
		l.in, l.at, l.none = space, map[uint64][]fetch.Line{}, map[*symbol.Image]bool{}
	}
	if ls, ok := l.at[addr]; ok {
		return ls
	}
	ls := c.findLines(space, addr)
	l.at[addr] = ls
	return ls
}

// findLines is Lines without its memory. Precondition: c.lines.mu is held.
func (c *Core) findLines(space *symbol.Space, addr uint64) []fetch.Line {
	loc, ok := space.SymbolAt(addr)
	if !ok || c.lines.none[loc.Module.Image] {
		return nil
	}
	if loc.Func.Lang == symbol.LangGo {
		var out []fetch.Line
		for _, l := range loc.Module.Image.GoLines(loc.Module.Linktime(addr)) {
			out = append(out, fetch.Line(l))
		}
		return out
	}
	f, err := debugInfo(loc.Module.Image)
	if err != nil {
		c.lines.none[loc.Module.Image] = true
		return nil
	}
	ls, err := f.Lines(loc.Module.Linktime(addr))
	if err != nil {
		return nil
	}
	out := make([]fetch.Line, len(ls))
	for i, l := range ls {
		out[i] = fetch.Line(l)
	}
	return out
}
