package btf

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// cursor is a value on the way along a path.
type cursor struct {
	spec   *Spec
	t      typ
	at     arch.Placement // where the value is that the path begins with
	loaded bool           // the value is in memory, off bytes from what the loads so far lead to
	loads  []int64
	off    int64
	bit    int // the first bit of the value in its first byte
	width  int // bits of a bit field; 0: it is none
	entry  bool
	result bool
}

// find goes along a path, which begins with a value of a type.
func (c *cursor) find(e *event.Expr, id ID, steps []event.Step) (*fetch.Var, error) {
	if err := c.become(id, e.Pos); err != nil {
		return nil, err
	}
	for i := range steps {
		if err := c.step(&steps[i]); err != nil {
			return nil, err
		}
	}
	return c.found(e)
}

// become gives the value another type.
func (c *cursor) become(id ID, pos int) error {
	t, ok := c.spec.plain(id)
	if !ok {
		return refuse(event.BadBTFTid, pos, "%v: typedefs without an end", errDamaged)
	}
	c.t = t
	return nil
}

// load follows the pointer that the value is.
func (c *cursor) load(pos int) error {
	id := ID(c.t.size)
	if c.loaded {
		c.loads = append(c.loads, c.off)
	}
	c.loaded, c.off, c.bit, c.width = true, 0, 0, 0
	return c.become(id, pos)
}

// step goes one step into the value, in the words of parse_btf_field (kernel/trace/trace_probe.c).
func (c *cursor) step(st *event.Step) error {
	if st.Type != "" {
		return refuse(event.NosupBTFArg, st.Pos, "a kernel has no interfaces of Go: a type assertion is for Go programs; a typecast is (STRUCT)ADDRESS->MEMBER")
	}
	if st.Field == "" {
		return c.element(st)
	}
	if st.Arrow {
		if c.t.kind != kindPointer {
			return refuse(event.NoPtrStrct, st.Pos, "what stands before it is %s, and no pointer: write .%s for a member", c.spec.title(&c.t), st.Field)
		}
		if err := c.load(st.Pos); err != nil {
			return err
		}
	}
	switch {
	case c.t.kind == kindPointer:
		return refuse(event.BadBTFTid, st.Pos, "what stands before it is a pointer: write ->%s", st.Field)
	case !c.t.hasMembers():
		return refuse(event.BadBTFTid, st.Pos, "what stands before it is %s, which has no members", c.spec.title(&c.t))
	}
	m, ok := c.spec.lookup(&c.t, st.Field)
	if !ok {
		return refuse(event.NoBTFField, st.Pos, "%s", c.spec.members(&c.t))
	}
	c.off += int64(m.off / 8)
	c.bit, c.width = int(m.off%8), m.bits
	return c.become(m.id, st.Pos)
}

// element goes to an element of an array, or of what a pointer leads to.
func (c *cursor) element(st *event.Step) error {
	id := ID(c.t.size)
	switch c.t.kind {
	case kindArray:
		elem, n := c.t.array()
		if id = elem; n > 0 && st.Index >= int64(n) { // an array without a length ends a struct
			return refuse(event.NoBTFField, st.Pos, "the array has %d elements", n)
		}
	case kindPointer:
		if err := c.load(st.Pos); err != nil {
			return err
		}
	default:
		return refuse(event.NoBTFField, st.Pos, "what stands before it is %s, which has no elements", c.spec.title(&c.t))
	}
	size := c.spec.sizeof(id)
	if size <= 0 || st.Index < 0 || st.Index > maxSize/size {
		return refuse(event.NoBTFField, st.Pos, "no such element")
	}
	c.off += st.Index * size
	return c.become(id, st.Pos)
}

// found is what the value is, at the end of the path.
func (c *cursor) found(e *event.Expr) (*fetch.Var, error) {
	v := &fetch.Var{AtEntry: c.entry, Result: c.result, TypeName: c.spec.title(&c.t)}
	switch {
	case len(c.at.Parts) == 0 || c.at.Memory:
		return nil, refuse(event.NosupDatArg, e.Pos, "values of type %s are not recorded as a whole", v.TypeName)
	case c.loaded:
		v.Derefs = append(c.loads, c.off)
	}
	v.Base = c.at.Parts[0].At
	if err := c.natural(e, v); err != nil {
		return nil, err
	}
	return v, c.bitField(e, v)
}

// natural sets how a value is shown that no type is asked for: fetch_type_from_btf_type (kernel/trace/trace_probe.c), and arrays.
func (c *cursor) natural(e *event.Expr, v *fetch.Var) error {
	t := &c.t
	v.Type = fetch.Type{Kind: event.Unsigned, Size: int(t.size)}
	switch t.kind {
	case kindInt:
		if signed, _, _ := t.integer(); signed {
			v.Type.Kind = event.Signed
		}
	case kindEnum, kindEnum64:
		v.Type.Kind = event.Signed
	case kindPointer:
		v.Type = fetch.Type{Kind: event.Hex, Size: 8}
		if to, _ := c.spec.plain(ID(t.size)); c.spec.isChar(&to) {
			v.Str = fetch.StrPointer
		}
	case kindArray:
		return c.array(e, v)
	case kindStruct, kindUnion:
		if c.loaded {
			return refuse(event.NosupDatArg, e.Pos, "values of type %s are not recorded as a whole: name a member; %s", v.TypeName, c.spec.members(t))
		}
		v.Type = fetch.Type{Kind: event.Hex, Size: 8} // one that a register passes
	default:
		return refuse(event.NosupDatArg, e.Pos, "values of type %s can not be recorded", v.TypeName)
	}
	switch v.Type.Size {
	case 1, 2, 4, 8:
		return nil
	}
	return refuse(event.NosupDatArg, e.Pos, "values of type %s can not be recorded: they have not 1, 2, 4 or 8 bytes", v.TypeName)
}

// array sets how an array is shown: characters as a string, numbers each.
func (c *cursor) array(e *event.Expr, v *fetch.Var) error {
	id, n := c.t.array()
	elem, ok := c.spec.plain(id)
	if !ok || elem.kind == kindArray || elem.hasMembers() {
		return refuse(event.NosupDatArg, e.Pos, "an array of %s is not recorded as a whole: name an element", c.spec.title(&elem))
	}
	c.t = elem
	if err := c.natural(e, v); err != nil {
		return err
	}
	v.Str, v.Count = fetch.StrNone, int(min(max(n, 1), event.MaxArray))
	if c.spec.isChar(&elem) {
		v.Str = fetch.StrHere
		if c.spec.name(elem.name) == "char" {
			v.Type, v.Count = fetch.Type{Kind: event.String}, 0
		}
	}
	return nil
}

// isChar says whether a string consists of values of the type: characters and other bytes without a sign.
func (s *Spec) isChar(t *typ) bool {
	if t.kind != kindInt {
		return false
	}
	signed, bits, _ := t.integer()
	return bits == 8 && (!signed || s.name(t.name) == "char")
}

// bitField takes the bits of a bit field out. They are read from the byte on that the first is in, as the kernel does.
func (c *cursor) bitField(e *event.Expr, v *fetch.Var) error {
	if c.t.kind == kindInt && c.width == 0 { // before Linux 4.20 the type told
		if _, bits, first := c.t.integer(); bits != 8*int(c.t.size) {
			c.width, c.bit = bits, c.bit+first
		}
	}
	t := &v.Type
	if c.width == 0 || c.width == 8*t.Size && c.bit == 0 {
		return nil
	}
	if v.Count > 0 || v.Str == fetch.StrHere || c.bit+c.width > 64 {
		return refuse(event.NosupDatArg, e.Pos, "%v: a bit field of %s", errDamaged, v.TypeName)
	}
	if c.bit+c.width > 8*t.Size {
		t.Size = 8
	}
	t.Width, t.Shift, v.Str = c.width, c.bit, fetch.StrNone
	return nil
}
