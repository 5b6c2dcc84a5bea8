package vars

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/fetch"
)

// cursor is a value on the way along a path.
type cursor struct {
	s   *Scope
	typ debuginfo.Type
	at  place // where it is, until something is loaded
	off int64 // bytes of the value that are passed over, before the first load

	loaded bool // base and derefs hold; off is an offset from the last load's address
	base   fetch.Base
	derefs []int64
	checks []fetch.Check
	entry  bool
	result bool
	bits   *debuginfo.Field
}

// Find gives what a name with the steps behind it stands for, at the entry or at a return.
func (s *Scope) Find(e *event.Expr, at fetch.Point) (*fetch.Var, error) {
	name, steps := e.Path()
	c, err := s.root(e, name, at)
	if err != nil && len(steps) > 0 && steps[0].Field != "" && !steps[0].Arrow { // main.count is a variable of a package
		if v, e2 := s.root(e, name+"."+steps[0].Field, at); e2 == nil {
			c, err, steps = v, nil, steps[1:]
		}
	}
	if err != nil {
		return nil, err
	}
	for i := range steps {
		if err := c.step(&steps[i]); err != nil {
			return nil, err
		}
	}
	return c.found(e)
}

// root finds the variable itself.
func (s *Scope) root(e *event.Expr, name string, at fetch.Point) (*cursor, error) {
	i := slices.IndexFunc(s.fn.Params, func(p debuginfo.Param) bool { return p.Name == name })
	if i >= 0 && name != "" {
		p := s.params[i]
		switch {
		case at == fetch.PointInside && s.inside == nil:
			return nil, &fetch.NameError{Code: event.NofentryArgs, Pos: e.Pos, Why: fmt.Sprintf("%s is known at the entry; inside the function name the register or the word of the stack: %%REG, $stackN", name)}
		case p.why != nil:
			return nil, &fetch.NameError{Code: event.NoBTFArg, Pos: e.Pos, Why: fmt.Sprintf("%s: %v", name, p.why)}
		}
		return &cursor{s: s, typ: s.fn.Params[i].Type, at: p, entry: at == fetch.PointReturn}, nil
	}
	i = slices.IndexFunc(s.fn.Results, func(p debuginfo.Param) bool { return p.Name == name })
	if i >= 0 && name != "" && at == fetch.PointReturn {
		if why := s.results[i].why; why != nil {
			return nil, &fetch.NameError{Code: event.NoBTFArg, Pos: e.Pos, Why: fmt.Sprintf("%s: %v", name, why)}
		}
		return &cursor{s: s, typ: s.fn.Results[i].Type, at: s.results[i], result: true}, nil
	}
	v, err := s.file.Var(name)
	if errors.Is(err, debuginfo.ErrNone) {
		return nil, &fetch.NameError{Code: event.NoBTFArg, Pos: e.Pos, Why: s.unknown(name)}
	}
	if err != nil {
		return nil, &fetch.NameError{Code: event.NoBTFArg, Pos: e.Pos, Why: fmt.Sprintf("%s: %v", name, err)}
	}
	p := s.told(&v, nil)
	if p.why != nil {
		return nil, &fetch.NameError{Code: event.NoBTFArg, Pos: e.Pos, Why: fmt.Sprintf("%s: %v", name, p.why)}
	}
	return &cursor{s: s, typ: v.Type, at: p}, nil
}

// unknown says which names there are.
func (s *Scope) unknown(name string) string {
	names := s.Names()
	if len(names) == 0 {
		return fmt.Sprintf("there is no variable %q, and the function has no parameters", name)
	}
	return fmt.Sprintf("there is no variable %q; the function's parameters are %s", name, strings.Join(names, ", "))
}

// load follows the pointer that the value is.
func (c *cursor) load(pos int) error {
	if c.loaded {
		c.derefs, c.off = append(c.derefs, c.off), 0
		return nil
	}
	p, err := c.part(pos, 8)
	if err != nil {
		return err
	}
	if c.at.Memory {
		c.base, c.derefs = p.At, []int64{c.at.Off + c.off}
	} else {
		c.base = p.At
	}
	c.loaded, c.off = true, 0
	return nil
}

// part is where the bytes at c.off are.
func (c *cursor) part(pos int, size int64) (arch.ValuePart, error) {
	if c.at.Memory {
		return c.at.Parts[0], nil
	}
	for _, p := range c.at.Parts {
		if c.off < p.Off || c.off+size > p.Off+p.Size {
			continue
		}
		if p.Vector {
			return p, &fetch.NameError{Code: event.NoBTFArg, Pos: pos, Why: "it is in a vector register, which is not recorded"}
		}
		return p, nil
	}
	return arch.ValuePart{}, &fetch.NameError{Code: event.NoBTFArg, Pos: pos, Why: "this part of it was optimised out"}
}

// step goes one step into the value.
func (c *cursor) step(st *event.Step) error {
	if c.bits != nil {
		return &fetch.NameError{Code: event.NoBTFField, Pos: st.Pos, Why: "a bit field has no members"}
	}
	sh, err := c.shapeOf(st.Pos)
	if err != nil {
		return err
	}
	for sh.Kind == debuginfo.Reference {
		if err := c.load(st.Pos); err != nil {
			return err
		}
		c.typ = sh.Elem
		if sh, err = c.shapeOf(st.Pos); err != nil {
			return err
		}
	}
	switch {
	case st.Type != "":
		return c.assert(st, sh)
	case st.Field == "":
		return c.element(st, sh)
	}
	if sh.Kind == debuginfo.Pointer {
		if !st.Arrow && c.s.fn.Lang != debuginfo.LangGo && c.s.fn.Lang != debuginfo.LangRust {
			return &fetch.NameError{Code: event.NoBTFField, Pos: st.Pos, Why: fmt.Sprintf("what stands before it is a pointer: write ->%s", st.Field)}
		}
		if err := c.load(st.Pos); err != nil {
			return err
		}
		c.typ = sh.Elem
		if sh, err = c.shapeOf(st.Pos); err != nil {
			return err
		}
	} else if st.Arrow {
		return &fetch.NameError{Code: event.NoPtrStrct, Pos: st.Pos, Why: fmt.Sprintf("what stands before it is no pointer: write .%s", st.Field)}
	}
	if sh.Kind != debuginfo.Struct && sh.Kind != debuginfo.Union {
		return &fetch.NameError{Code: event.NoPtrStrct, Pos: st.Pos, Why: fmt.Sprintf("what stands before it is of type %s, which has no members", typeName(sh))}
	}
	return c.member(st, sh)
}

func (c *cursor) shapeOf(pos int) (*debuginfo.Shape, error) {
	sh, err := c.typ.Shape()
	if err != nil {
		return nil, &fetch.NameError{Code: event.BadBTFTid, Pos: pos, Why: err.Error()}
	}
	return sh, nil
}

// element goes to an element of an array, or of what a pointer leads to.
func (c *cursor) element(st *event.Step, sh *debuginfo.Shape) error {
	if sh.Kind != debuginfo.Pointer && sh.Kind != debuginfo.Array {
		return &fetch.NameError{Code: event.NoBTFField, Pos: st.Pos, Why: fmt.Sprintf("what stands before it is of type %s, which has no elements", typeName(sh))}
	}
	if sh.Kind == debuginfo.Array && sh.Count >= 0 && st.Index >= sh.Count {
		return &fetch.NameError{Code: event.NoBTFField, Pos: st.Pos, Why: fmt.Sprintf("the array has %d elements", sh.Count)}
	}
	e, err := sh.Elem.Shape()
	if err != nil || e.Size <= 0 || st.Index < 0 || st.Index > 1<<31/e.Size {
		return &fetch.NameError{Code: event.NoBTFField, Pos: st.Pos, Why: "no such element"}
	}
	if sh.Kind == debuginfo.Pointer {
		if err := c.load(st.Pos); err != nil {
			return err
		}
	}
	c.off += st.Index * e.Size
	c.typ = sh.Elem
	return nil
}

// member goes to a member, also of a member without a name.
func (c *cursor) member(st *event.Step, sh *debuginfo.Shape) error {
	if sh.Decl {
		return &fetch.NameError{Code: event.NoBTFField, Pos: st.Pos, Why: fmt.Sprintf("the members of type %s are not in this file's debug information", typeName(sh))}
	}
	f, ok, err := c.lookup(c.typ, st.Field, 0)
	if err != nil {
		return &fetch.NameError{Code: event.BadBTFTid, Pos: st.Pos, Why: err.Error()}
	}
	if !ok {
		return &fetch.NameError{Code: event.NoBTFField, Pos: st.Pos, Why: c.members(sh)}
	}
	c.off += f.Off
	c.typ = f.Type
	if f.BitSize > 0 {
		c.bits = &f
	}
	return nil
}

// lookup finds a member of a type; its offset counts from the start of the type.
func (c *cursor) lookup(t debuginfo.Type, name string, depth int) (debuginfo.Field, bool, error) {
	fs, err := t.Fields()
	if err != nil || depth > maxDepth {
		return debuginfo.Field{}, false, err
	}
	for _, f := range fs {
		if f.Name == name {
			return f, true, nil
		}
	}
	for _, f := range fs {
		if f.Name != "" && !f.Embedded {
			continue
		}
		in, ok, err := c.lookup(f.Type, name, depth+1)
		if ok || err != nil {
			in.Off += f.Off
			return in, ok, err
		}
	}
	return debuginfo.Field{}, false, nil
}

// members says which members there are.
func (c *cursor) members(sh *debuginfo.Shape) string {
	fs, _ := c.typ.Fields()
	var names []string
	for _, f := range fs {
		if f.Name != "" {
			names = append(names, f.Name)
		}
		if len(names) == 12 {
			names = append(names, "…")
			break
		}
	}
	return fmt.Sprintf("type %s has %s", typeName(sh), strings.Join(names, ", "))
}

func typeName(sh *debuginfo.Shape) string {
	if sh.Name == "" {
		return "without a name"
	}
	return sh.Name
}
