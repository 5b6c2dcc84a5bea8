package engine

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// Matching lists the functions that match [OBJECT:]PATTERN, in the order of objects and addresses. Without an object it looks in the
// program's own file; an object may be a pattern too.
func (c *Core) Matching(pattern string) (out []symbol.Resolved) {
	object, name, ok := cutObject(pattern)
	for i, m := range c.space.Load().Modules() {
		if !ok && i > 0 {
			break
		}
		if ok && !symbol.MatchGlob(object, m.Name) {
			continue
		}
		for _, fn := range m.Image.Glob(name) {
			if !fn.PLT {
				out = append(out, resolvedAt(m, fn))
			}
		}
	}
	return out
}

// cutObject parts [OBJECT:]PATTERN at its first single colon.
func cutObject(pattern string) (object, name string, ok bool) {
	for i := 0; i < len(pattern); i++ {
		switch {
		case strings.HasPrefix(pattern[i:], "::"):
			i++
		case pattern[i] == ':':
			return pattern[:i], pattern[i+1:], true
		}
	}
	return "", pattern, false
}

// CheckFunction says why no probe of a kind can stand at a function, as Check does.
func (c *Core) CheckFunction(r symbol.Resolved, kind event.Kind) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &event.Def{Kind: kind, Group: event.DefaultGroup, Place: event.Place{Kind: event.PlaceAddr, Addr: r.Addr, Module: r.Module.Name}}
	if err := c.forbidden(d); err != nil {
		return err
	}
	e := newEvent(d, c, &AddOptions{})
	err := c.locate(e, r)
	return plain(c.checked(e, err))
}

// InlinedCalls is the number of calls of a function that the compiler has inlined, in its object, by Go's function table, or by debug
// information.
func (c *Core) InlinedCalls(r symbol.Resolved) (int, error) {
	if r.Func.Lang == symbol.LangGo {
		if n, ok := r.Module.Image.GoInlined(r.Func.Name); ok {
			return n, nil
		}
	}
	f, err := debugInfo(r.Module.Image)
	if err != nil {
		return 0, err
	}
	at, err := f.Inlined(func(name, linkage string) bool {
		if linkage != "" {
			return linkage == r.Func.Name
		}
		return name == r.Func.Name
	})
	return len(at), err
}

// Signature tells the parameters and results of a function, as its language writes them.
func (c *Core) Signature(r symbol.Resolved) (string, error) {
	if r.Func.Lang == symbol.LangGo {
		return goSignature(r)
	}
	f, err := debugInfo(r.Module.Image)
	if err != nil {
		return "", err
	}
	fn, err := f.Func(r.Func.Addr)
	if err != nil {
		return "", err
	}
	out := "void"
	if len(fn.Results) > 0 {
		if out, err = fn.Results[0].Type.Name(); err != nil {
			return "", err
		}
	}
	var in []string
	for i := range fn.Params {
		t, err := fn.Params[i].Type.Name()
		if err != nil {
			return "", err
		}
		in = append(in, strings.TrimSuffix(t+" "+fn.Params[i].Name, " "))
	}
	if fn.Variadic {
		in = append(in, "...")
	}
	return fmt.Sprintf("%s (%s)", out, strings.Join(in, ", ")), nil
}

// GoParams is the number of parameters and results of a Go function, by debug information.
func (c *Core) GoParams(name string) (in, out int, err error) {
	c.mu.Lock()
	r, err := c.where(event.Place{Kind: event.PlaceSymbol, Symbol: name})
	c.mu.Unlock()
	if err != nil {
		return 0, 0, err
	}
	sig, err := typedSignature(r)
	if err != nil {
		return 0, 0, err
	}
	return len(sig.Params), len(sig.Results), nil
}

// typedSignature is what debug information tells of a Go function.
func typedSignature(r symbol.Resolved) (*symbol.Signature, error) {
	if r.Func == nil {
		return nil, errno.Errorf(unix.EINVAL, "no function is known around 0x%x", r.Addr)
	}
	sig, err := r.Module.Image.GoSignature(r.Func)
	switch {
	case err != nil:
		return nil, err
	case sig.Problem != nil:
		return nil, sig.Problem
	case !sig.Typed:
		return nil, errno.Errorf(unix.EOPNOTSUPP, "%s has no debug information, which would tell the types of %s", r.Module.Name, r.Func.Pretty())
	}
	return sig, nil
}

// goSignature is Signature of a function of Go.
func goSignature(r symbol.Resolved) (string, error) {
	sig, err := typedSignature(r)
	if err != nil {
		return "", err
	}
	out := "func(" + goParams(sig.Params) + ")"
	switch {
	case len(sig.Results) == 1 && strings.HasPrefix(sig.Results[0].Name, "~"):
		out += " " + goParams(sig.Results)
	case len(sig.Results) > 0:
		out += " (" + goParams(sig.Results) + ")"
	}
	return out, nil
}

// goParams writes parameters as a declaration has them. The compiler's names begin with ~.
func goParams(ps []symbol.Param) string {
	var out []string
	for _, p := range ps {
		text := strings.ReplaceAll(p.Type, "%2e", ".")
		if p.Name != "" && !strings.HasPrefix(p.Name, "~") {
			text = p.Name + " " + text
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}
