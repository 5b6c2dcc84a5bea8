package event

import "strings"

// DefaultType is what an argument has that names none: x64.
var DefaultType = TypeSpec{Kind: Hex, Size: 8}

// typeNamed gives the type that has a name.
func typeNamed(name string) (TypeSpec, bool) {
	switch name {
	case "u8":
		return TypeSpec{Kind: Unsigned, Size: 1}, true
	case "u16":
		return TypeSpec{Kind: Unsigned, Size: 2}, true
	case "u32":
		return TypeSpec{Kind: Unsigned, Size: 4}, true
	case "u64":
		return TypeSpec{Kind: Unsigned, Size: 8}, true
	case "s8":
		return TypeSpec{Kind: Signed, Size: 1}, true
	case "s16":
		return TypeSpec{Kind: Signed, Size: 2}, true
	case "s32":
		return TypeSpec{Kind: Signed, Size: 4}, true
	case "s64":
		return TypeSpec{Kind: Signed, Size: 8}, true
	case "x8":
		return TypeSpec{Kind: Hex, Size: 1}, true
	case "x16":
		return TypeSpec{Kind: Hex, Size: 2}, true
	case "x32":
		return TypeSpec{Kind: Hex, Size: 4}, true
	case "x64":
		return TypeSpec{Kind: Hex, Size: 8}, true
	case "char":
		return TypeSpec{Kind: Char, Size: 1}, true
	case "symbol":
		return TypeSpec{Kind: Symbol, Size: 8}, true
	case "symstr":
		return TypeSpec{Kind: SymStr, Size: 8}, true
	case "string":
		return TypeSpec{Kind: String}, true
	case "ustring":
		return TypeSpec{Kind: UString}, true
	case "gostring":
		return TypeSpec{Kind: GoString}, true
	}
	return TypeSpec{}, false
}

const knownTypes = "types are u8 to u64, s8 to s64, x8 to x64, char, string, ustring, gostring, symbol, symstr and b<w>@<o>/<c>; %pd and %pD are a kernel's (-k)"

// parseType reads TYPE[COUNT] behind an argument's colon.
func (d *Def) parseType(t text) (TypeSpec, error) {
	count, base, err := d.parseArray(t)
	if err != nil {
		return TypeSpec{}, err
	}
	ty, ok := typeNamed(base)
	if !ok {
		if ty, ok = container(base); !ok {
			return ty, d.Refuse(BadType, t.pos, knownTypes, nil)
		}
	}
	ty.Count, ty.Text, ty.Pos = count, t.s, t.pos
	return ty, nil
}

// parseArray takes the brackets off a type.
func (d *Def) parseArray(t text) (count int, base string, err error) {
	open := strings.IndexByte(t.s, '[')
	if open < 0 {
		return 0, t.s, nil
	}
	in := t.from(open + 1)
	end := strings.IndexByte(in.s, ']')
	switch {
	case end < 0:
		return 0, "", d.Refuse(ArrayNoClose, in.end(), "", nil)
	case end+1 < len(in.s):
		return 0, "", d.Refuse(BadArraySuffix, in.pos+end+1, "nothing may follow the bracket", nil)
	}
	n, ok := parseUint(in.s[:end])
	switch {
	case !ok || n == 0 || n >= 1<<32:
		return 0, "", d.Refuse(BadArrayNum, in.pos, "an array has 1 to 64 elements", nil)
	case n > MaxArray:
		return 0, "", d.Refuse(ArrayTooBig, in.pos, "the most is 64 elements", nil)
	}
	return int(n), t.s[:open], nil
}

// container reads the last part of b<w>@<o>/<c>.
func container(s string) (TypeSpec, bool) {
	slash := strings.IndexByte(s, '/')
	if slash < 0 || s[0] != 'b' {
		return TypeSpec{}, false
	}
	c, ok := parseUint(s[slash+1:])
	if !ok || c != 8 && c != 16 && c != 32 && c != 64 {
		return TypeSpec{}, false
	}
	return TypeSpec{Kind: Bits, Size: int(c / 8)}, true
}

// bits reads the width and the offset of a bit field.
func (d *Def) bits(ty *TypeSpec) error {
	if ty.Kind != Bits {
		return nil
	}
	spec, _, _ := strings.Cut(ty.Text[1:], "/")
	w, o, _ := strings.Cut(spec, "@")
	width, okW := parseUint(w)
	shift, okO := parseUint(o)
	size := uint64(8 * ty.Size)
	if !okW || !okO || w[0] == '+' || o[0] == '+' || width == 0 || width > size || shift > size-width {
		return d.Refuse(BadBitfield, ty.Pos, "b<w>@<o>/<c> takes w bits, at least one, from bit o of a container of c bits: w+o is at most c", nil)
	}
	ty.Width, ty.Shift = int(width), int(shift)
	return nil
}

// fit checks that a value of the expression can be taken as the type, in the kernel's
// words: BadString, "String accepts only memory argument", is its word for arrays too.
func (d *Def) fit(a *Arg) error {
	t, e := &a.Type, a.Expr
	if e.Kind == ExprComm || e.Kind == ExprString {
		if t.Text != "" && t.Text != "string" {
			return d.Refuse(NeedStringType, t.Pos, "", nil)
		}
		t.Kind, t.Size = String, 0
		return nil
	}
	mem := e.isMemory()
	switch {
	case t.Kind == GoString && t.Count > 0:
		return d.Refuse(BadType, t.Pos, "there are no arrays of gostring", nil)
	case t.Kind == GoString && !mem && !e.twoWords():
		return d.Refuse(BadString, t.Pos, "a gostring is two words: take it from $argN, $retval, $stackN or memory, +0(%REG)", nil)
	case e.Kind == ExprRetVal && t.IsString() && t.Count == 0: // its type may tell that it is the address of one
	case (t.Kind == String || t.Kind == UString) && !mem && (e.Kind != ExprImm || t.Count > 0):
		return d.Refuse(BadString, t.Pos, "a string stands in memory: +0("+a.source()+"):string", nil)
	case t.Kind == SymStr && e.Kind == ExprDuration:
		return d.Refuse(BadType, t.Pos, "a duration is a number", nil)
	case t.Kind == SymStr && e.Kind == ExprImm:
		return d.Refuse(BadSymstring, t.Pos, "", nil)
	}
	if err := d.bits(t); err != nil {
		return err
	}
	if t.Count > 0 && !mem {
		return d.Refuse(BadString, t.Pos, "an array stands in memory: +0("+a.source()+")", nil)
	}
	return nil
}

// source is the argument's expression as written, without its type.
func (a *Arg) source() string { return strings.TrimSuffix(a.Text, ":"+a.Type.Text) }
