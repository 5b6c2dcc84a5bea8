package debuginfo

import (
	"debug/dwarf"
	"fmt"
	"reflect"
)

// Type is a type, by its entry. The zero Type is void.
type Type struct {
	f     *File
	off   dwarf.Offset
	known bool
}

// Kind says what a type is.
type Kind uint8

// Kinds of types.
const (
	Void Kind = iota
	Bool
	Int
	Uint
	CharKind // char; signed char and unsigned char are numbers
	Float
	Complex
	Enum
	Pointer
	Reference // of C++: a pointer that is written as what it points to
	Struct
	Union
	Array
	Function
	Other // something that is not known here
)

// Shape is what a type is made of, without typedefs and qualifiers.
type Shape struct {
	Kind   Kind
	Name   string // the outermost that the type has, "" if it has none
	Size   int64  // bytes; 0: not told, as of a struct that is only declared
	Elem   Type   // of a pointer, a reference or an array
	Count  int64  // elements of an array; -1: not told
	Signed bool   // of an Enum
	GoKind reflect.Kind
	Decl   bool // a struct or union whose members this file does not tell
}

// Field is a member of a struct or union.
type Field struct {
	Name string // "" of a member without a name, whose own members count as the struct's, and of a base class
	Type Type
	Off  int64 // bytes from the start
	// BitSize and BitOff are those of a bit field: Off is that of its container of Container bytes, whose lowest bit is 0.
	BitSize, BitOff, Container int
	Embedded                   bool // of Go, or a base class of C++
}

// Known says whether there is a type; else it is void.
func (t Type) Known() bool { return t.known }

// Attributes of Go's own (cmd/internal/dwarf).
const attrGoKind = dwarf.Attr(0x2900)

// Shape reads a type.
func (t Type) Shape() (*Shape, error) {
	if !t.known {
		return &Shape{}, nil
	}
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	return t.shape()
}

// shape is Shape of a type that is not void. Precondition: mu is held.
func (t Type) shape() (*Shape, error) {
	s := &Shape{}
	w := t.f.walk()
	off := t.off
	for range maxPeel {
		e, r, err := w.at(off)
		if err != nil {
			return nil, err
		}
		if name, ok := e.Val(dwarf.AttrName).(string); ok && s.Name == "" {
			s.Name = name
		}
		if k, ok := e.Val(attrGoKind).(int64); ok && s.GoKind == reflect.Invalid && k > 0 && k <= int64(reflect.UnsafePointer) {
			s.GoKind = reflect.Kind(k)
		}
		switch e.Tag {
		case dwarf.TagTypedef, dwarf.TagConstType, dwarf.TagVolatileType, dwarf.TagRestrictType, dwarf.TagAtomicType, dwarf.TagImmutableType, dwarf.TagPackedType:
			next, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
			if !ok {
				return s, nil // const void
			}
			off = next
			continue
		}
		return s, s.fill(w, r, e)
	}
	return nil, fmt.Errorf("type %q: more than %d typedefs and qualifiers: %w", s.Name, maxPeel, ErrLimit)
}

// fill fills in what the entry of a type itself says.
func (s *Shape) fill(w *walk, r *dwarf.Reader, e *dwarf.Entry) error {
	if n, ok := e.Val(dwarf.AttrByteSize).(int64); ok && n >= 0 {
		s.Size = n
	}
	s.Decl, _ = e.Val(dwarf.AttrDeclaration).(bool)
	elem := w.typ(e)
	s.Kind = Other
	switch e.Tag {
	case dwarf.TagBaseType:
		enc, _ := e.Val(dwarf.AttrEncoding).(int64)
		if s.Kind = encoded(enc); e.Val(dwarf.AttrName) == "char" && s.Size == 1 {
			s.Kind = CharKind
		}
	case dwarf.TagPointerType:
		s.Kind, s.Elem = Pointer, elem
	case dwarf.TagReferenceType, dwarf.TagRvalueReferenceType:
		s.Kind, s.Elem = Reference, elem
	case dwarf.TagStructType, dwarf.TagClassType, dwarf.TagInterfaceType:
		s.Kind = Struct
	case dwarf.TagUnionType:
		s.Kind = Union
	case dwarf.TagEnumerationType:
		s.Kind = Enum
		return s.enum(w, r, e, elem)
	case dwarf.TagArrayType:
		s.Kind, s.Elem = Array, elem
		return s.array(w, r, e)
	case dwarf.TagSubroutineType:
		s.Kind = Function
	case dwarf.TagUnspecifiedType:
		s.Kind = Void
	}
	switch s.Kind {
	case Pointer, Reference, Function:
		if s.Size == 0 {
			s.Size = 8
		}
	}
	return nil
}

// encoded gives the kind of a base type (DWARF 5, 7.8).
func encoded(enc int64) Kind {
	switch enc {
	case 0x02:
		return Bool
	case 0x03:
		return Complex
	case 0x04:
		return Float
	case 0x05, 0x06:
		return Int
	case 0x07, 0x08, 0x10:
		return Uint
	}
	return Other
}

// enum learns whether an enumeration has negative values. Its underlying type tells, in C its enumerators.
func (s *Shape) enum(w *walk, r *dwarf.Reader, e *dwarf.Entry, under Type) error {
	if k, ok := w.baseKind(under); ok {
		s.Signed = k == Int
		return nil
	}
	if !e.Children {
		return nil
	}
	return w.children(r, func(e *dwarf.Entry) error {
		if v, ok := e.Val(dwarf.AttrConstValue).(int64); ok && v < 0 {
			s.Signed = true
		}
		return nil
	})
}

// baseKind is the kind of a base type behind typedefs.
func (w *walk) baseKind(t Type) (Kind, bool) {
	off, ok := t.off, t.known
	for range maxPeel {
		if !ok {
			break
		}
		e, _, err := w.at(off)
		if err != nil {
			break
		}
		if e.Tag == dwarf.TagBaseType {
			enc, _ := e.Val(dwarf.AttrEncoding).(int64)
			return encoded(enc), true
		}
		off, ok = e.Val(dwarf.AttrType).(dwarf.Offset)
	}
	return Other, false
}

// array learns how many elements an array has: all dimensions together.
func (s *Shape) array(w *walk, r *dwarf.Reader, e *dwarf.Entry) error {
	s.Count = -1
	if !e.Children {
		return nil
	}
	total, dims := int64(1), 0
	err := w.children(r, func(e *dwarf.Entry) error {
		if e.Tag != dwarf.TagSubrangeType {
			return nil
		}
		n, ok := e.Val(dwarf.AttrCount).(int64)
		if !ok {
			if n, ok = e.Val(dwarf.AttrUpperBound).(int64); ok {
				n++
			}
		}
		if dims++; !ok || n < 0 || total < 0 || n > 1<<32 || total*n > 1<<40 {
			total = -1
			return nil
		}
		total *= n
		return nil
	})
	if dims > 0 {
		s.Count = total
	}
	return err
}

// Fields lists the members of a struct or union, without static ones.
func (t Type) Fields() ([]Field, error) {
	if !t.known {
		return nil, nil
	}
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	w := t.f.walk()
	off := t.off
	for range maxPeel {
		e, r, err := w.at(off)
		if err != nil {
			return nil, err
		}
		switch e.Tag {
		case dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType, dwarf.TagInterfaceType:
			if !e.Children {
				return nil, nil
			}
			return w.fields(r)
		}
		next, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
		if !ok || e.Tag == dwarf.TagPointerType || e.Tag == dwarf.TagArrayType {
			return nil, nil
		}
		off = next
	}
	return nil, ErrLimit
}

func (w *walk) fields(r *dwarf.Reader) (out []Field, err error) {
	err = w.children(r, func(e *dwarf.Entry) error {
		if e.Tag != dwarf.TagMember && e.Tag != dwarf.TagInheritance {
			return nil
		}
		if len(out) == maxFields {
			return fmt.Errorf("more than %d members: %w", maxFields, ErrLimit)
		}
		f, ok := w.field(e)
		if ok {
			out = append(out, f)
		}
		return nil
	})
	return out, err
}

// field reads a member; false: it is static, or its place is computed (a virtual base class).
func (w *walk) field(e *dwarf.Entry) (f Field, ok bool) {
	if ext, _ := e.Val(dwarf.AttrExternal).(bool); ext {
		return f, false
	}
	f.Name, _ = e.Val(dwarf.AttrName).(string)
	f.Type = w.typ(e)
	if e.Tag == dwarf.TagInheritance {
		f.Name, f.Embedded = "", true
	}
	if b, _ := e.Val(attrGoEmbedded).(bool); b {
		f.Embedded = true
	}
	switch v := e.Val(dwarf.AttrDataMemberLoc).(type) {
	case int64:
		f.Off = v
	case []byte:
		c := &cursor{b: v}
		if c.u8() != opPlusUconst {
			return f, false
		}
		f.Off = int64(c.uleb())
		if c.bad || c.pos != len(v) {
			return f, false
		}
	}
	bits, isBits := e.Val(dwarf.AttrBitSize).(int64)
	if !isBits {
		return f, f.Off >= 0
	}
	return f, f.bits(e, bits)
}

const attrGoEmbedded = dwarf.Attr(0x2903)

// bits fills in what a bit field has. A container of 8 bytes at most holds it.
func (f *Field) bits(e *dwarf.Entry, n int64) bool {
	if !f.Type.known {
		return false
	}
	s, err := f.Type.shape()
	if err != nil || n <= 0 || n > 64 || s.Size <= 0 || s.Size > 8 {
		return false
	}
	size := s.Size
	var first int64 // from the start of the struct
	if v, ok := e.Val(dwarf.AttrDataBitOffset).(int64); ok {
		first = v
	} else {
		if b, ok := e.Val(dwarf.AttrByteSize).(int64); ok && b > 0 && b <= 8 {
			size = b
		}
		v, _ := e.Val(dwarf.AttrBitOffset).(int64) // from the highest bit of the container
		first = f.Off*8 + size*8 - v - n
	}
	if first < 0 {
		return false
	}
	f.Container = int(size)
	f.Off = first / (8 * size) * size
	f.BitOff, f.BitSize = int(first-8*f.Off), int(n)
	return f.BitOff+f.BitSize <= 8*f.Container
}
