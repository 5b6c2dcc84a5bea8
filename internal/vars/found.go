package vars

import (
	"reflect"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/fetch"
)

// found is what the value is, at the end of the path.
func (c *cursor) found(e *event.Expr) (*fetch.Var, error) {
	sh, err := c.shapeOf(e.Pos)
	for err == nil && sh.Kind == debuginfo.Reference {
		if err = c.load(e.Pos); err == nil {
			c.typ = sh.Elem
			sh, err = c.shapeOf(e.Pos)
		}
	}
	if err != nil {
		return nil, err
	}
	v := &fetch.Var{Checks: c.checks, AtEntry: c.entry, Result: c.result, TypeName: typeName(sh)}
	if err := c.natural(e, v, sh); err != nil {
		return nil, err
	}
	switch {
	case c.loaded:
		v.Base, v.Derefs = c.base, append(c.derefs, c.off)
		return v, nil
	case c.at.Memory:
		v.Base, v.Derefs = c.at.Parts[0].At, []int64{c.at.Off + c.off}
		return v, nil
	}
	return v, c.inRegisters(e, v)
}

// inRegisters finds a value that is not in memory.
func (c *cursor) inRegisters(e *event.Expr, v *fetch.Var) error {
	size, words := int64(v.Type.Size), v.Str == fetch.StrGo || v.Str == fetch.StrContext
	if words {
		size = wordSize
	}
	p, err := c.part(e.Pos, size)
	if err != nil {
		return err
	}
	v.Base = p.At
	shift := int(c.off - p.Off)
	if left := p.Bits - 8*shift; p.Bits > 0 && left < 8*v.Type.Size && (v.Type.Width == 0 || left < v.Type.Shift+v.Type.Width) {
		if v.Type.Width > 0 || left <= 0 {
			return &fetch.NameError{Code: event.NoBTFArg, Pos: e.Pos, Why: debuginfo.ErrLocation.Error()}
		}
		v.Type.Width = left
	}
	if shift > 0 { // the program has it in the upper part of a register
		if v.Type.Width == 0 {
			v.Type.Width = 8 * v.Type.Size
		}
		v.Type.Shift, v.Type.Size = v.Type.Shift+8*shift, 8
	}
	if words {
		c.off += wordSize
		p, err := c.part(e.Pos, wordSize)
		v.Next = p.At
		return err
	}
	return nil
}

// natural sets how a value of a type of the program is shown.
func (c *cursor) natural(e *event.Expr, v *fetch.Var, sh *debuginfo.Shape) error {
	t := &v.Type
	t.Size = int(sh.Size)
	refuse := func(why string) error {
		return &fetch.NameError{Code: event.NosupDatArg, Pos: e.Pos, Why: "values of type " + typeName(sh) + why}
	}
	switch sh.Kind {
	case debuginfo.Bool, debuginfo.Uint:
		t.Kind = event.Unsigned
	case debuginfo.Int:
		t.Kind = event.Signed
	case debuginfo.CharKind:
		t.Kind = event.Char
	case debuginfo.Enum:
		if t.Kind = event.Unsigned; sh.Signed {
			t.Kind = event.Signed
		}
	case debuginfo.Pointer, debuginfo.Function:
		t.Kind = event.Hex
		if elem, err := sh.Elem.Shape(); err == nil && elem.Kind == debuginfo.CharKind {
			v.Str = fetch.StrPointer
		}
	case debuginfo.Array:
		return c.array(e, v, sh)
	case debuginfo.Struct, debuginfo.Union:
		if sh.GoKind == reflect.String || c.s.fn.Lang == debuginfo.LangRust && (sh.Name == "&str" || sh.Name == "&mut str") {
			*t, v.Str = fetch.Type{Kind: event.GoString}, fetch.StrGo
			return nil
		}
		if sh.GoKind == reflect.Interface && sh.Name == "context.Context" {
			*t, v.Str = fetch.Type{Kind: event.TraceContext}, fetch.StrContext
			return nil
		}
		return refuse(" are not recorded as a whole: name a member; " + c.members(sh))
	default:
		return refuse(" can not be recorded")
	}
	switch sh.Size {
	case 1, 2, 4, 8:
	default:
		return refuse(" can not be recorded: they have not 1, 2, 4 or 8 bytes")
	}
	if b := c.bits; b != nil {
		t.Size, t.Width, t.Shift, v.Str = b.Container, b.BitSize, b.BitOff, fetch.StrNone
	}
	return nil
}

// array sets how an array is shown: characters as a string, numbers each.
func (c *cursor) array(e *event.Expr, v *fetch.Var, sh *debuginfo.Shape) error {
	elem, err := sh.Elem.Shape()
	switch {
	case err != nil:
		return &fetch.NameError{Code: event.BadBTFTid, Pos: e.Pos, Why: err.Error()}
	case !c.loaded && !c.at.Memory:
		return &fetch.NameError{Code: event.NosupDatArg, Pos: e.Pos, Why: "an array in registers is not recorded as a whole: name an element"}
	case elem.Kind == debuginfo.CharKind:
		v.Type, v.Str = fetch.Type{Kind: event.String}, fetch.StrHere
		return nil
	case elem.Kind == debuginfo.Array, elem.Kind == debuginfo.Struct, elem.Kind == debuginfo.Union:
		return &fetch.NameError{Code: event.NosupDatArg, Pos: e.Pos, Why: "an array of " + typeName(elem) + " is not recorded as a whole: name an element"}
	}
	if err := c.natural(e, v, elem); err != nil {
		return err
	}
	v.Str, v.Count = fetch.StrNone, int(min(max(sh.Count, 1), event.MaxArray))
	return nil
}
