package btf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ID is the number of a type; 0 is void.
type ID uint32

// kind says what a type is (include/uapi/linux/btf.h).
type kind uint8

// Kinds.
const (
	kindVoid kind = iota
	kindInt
	kindPointer
	kindArray
	kindStruct
	kindUnion
	kindEnum
	kindForward
	kindTypedef
	kindVolatile
	kindConst
	kindRestrict
	kindFunc
	kindFuncProto
	kindVar
	kindDatasec
	kindFloat
	kindDeclTag
	kindTypeTag
	kindEnum64
	numKinds
)

// trailers are the bytes behind the header of a type of each kind: fixed ones, and those of each element.
var trailers = [numKinds]struct{ fixed, each int }{
	kindInt: {fixed: 4}, kindArray: {fixed: 12}, kindStruct: {each: memberSize}, kindUnion: {each: memberSize}, kindEnum: {each: 8},
	kindFuncProto: {each: paramSize}, kindVar: {fixed: 4}, kindDatasec: {each: 12}, kindDeclTag: {fixed: 4}, kindEnum64: {each: 12},
}

const (
	magic      = 0xeb9f
	headerSize = 24 // struct btf_header
	typeSize   = 12 // struct btf_type
	memberSize = 12 // struct btf_member
	paramSize  = 8  // struct btf_param

	maxModifiers = 64  // typedefs and qualifiers around a type
	maxName      = 512 // bytes (KSYM_NAME_LEN)
)

// Spec is a set of types. It does not change, and may be used by several goroutines.
type Spec struct {
	base    *Spec
	types   []byte
	strings []byte
	strOff  uint32   // that of the first string, which follow those of the base
	first   ID       // the number of the first type, which follow those of the base
	at      []uint32 // where in types each begins
	funcs   map[string]ID
}

var errDamaged = errors.New("the types (BTF) are damaged")

// Parse reads types as a kernel has them in memory; base, if not nil, has the types of the kernel that those of a module refer to. raw
// must not change afterwards.
func Parse(raw []byte, base *Spec) (*Spec, error) {
	le := binary.LittleEndian
	if len(raw) < headerSize || le.Uint16(raw) != magic {
		return nil, fmt.Errorf("%w: no header", errDamaged)
	}
	// cut gives the section whose offset and length are at pos of the header.
	cut := func(pos int) []byte {
		off, size := uint64(le.Uint32(raw[4:]))+uint64(le.Uint32(raw[pos:])), uint64(le.Uint32(raw[pos+4:]))
		if off+size > uint64(len(raw)) {
			return nil
		}
		return raw[off : off+size]
	}
	s := &Spec{base: base, types: cut(8), strings: cut(16), funcs: map[string]ID{}}
	if s.types == nil || s.strings == nil {
		return nil, fmt.Errorf("%w: sections beyond the end", errDamaged)
	}
	if s.first = 1; base != nil {
		s.first, s.strOff = base.first+ID(len(base.at)), base.strOff+uint32(len(base.strings))
	}
	return s, s.index()
}

// index finds where types begin, and the functions.
func (s *Spec) index() error {
	for off := 0; off < len(s.types); {
		t, size, err := s.decode(off)
		if err != nil {
			return err
		}
		s.at = append(s.at, uint32(off))
		if t.kind == kindFunc {
			name := s.name(t.name)
			if _, twice := s.funcs[name]; !twice && name != "" {
				s.funcs[name] = ID(t.size)
			}
		}
		off += size
	}
	return nil
}

// typ is a type.
type typ struct {
	kind  kind
	name  uint32 // offset of its name
	flag  bool   // kind_flag: offsets of members hold the size of bit fields
	count int    // of elements: members, parameters
	size  uint32 // bytes; of kinds that refer to a type its number
	data  []byte // the elements, and what kinds have else
}

// decode reads the type that begins off bytes into the types, and gives its size in bytes.
func (s *Spec) decode(off int) (t typ, size int, err error) {
	b := s.types[off:]
	if len(b) < typeSize {
		return t, 0, fmt.Errorf("%w: a type is cut off", errDamaged)
	}
	le := binary.LittleEndian
	info := le.Uint32(b[4:])
	t = typ{kind: kind(info >> 24 & 0x1f), name: le.Uint32(b), flag: info>>31 != 0, count: int(info & 0xffff), size: le.Uint32(b[8:])}
	if t.kind == kindVoid || t.kind >= numKinds {
		return t, 0, fmt.Errorf("%w: kind %d", errDamaged, t.kind)
	}
	n := trailers[t.kind]
	size = typeSize + n.fixed + n.each*t.count
	if len(b) < size {
		return t, 0, fmt.Errorf("%w: a type is cut off", errDamaged)
	}
	t.data = b[typeSize:size]
	return t, size, nil
}

// typ gives a type by its number; what is not there is void.
func (s *Spec) typ(id ID) typ {
	for s != nil && id < s.first && id != 0 {
		s = s.base
	}
	if s == nil || id == 0 || uint64(id-s.first) >= uint64(len(s.at)) {
		return typ{}
	}
	t, _, _ := s.decode(int(s.at[id-s.first])) // index has read it
	return t
}

// plain gives a type without typedefs and qualifiers. Where they have no end ok is false.
func (s *Spec) plain(id ID) (t typ, ok bool) {
	for range maxModifiers {
		switch t = s.typ(id); t.kind {
		case kindTypedef, kindVolatile, kindConst, kindRestrict, kindTypeTag:
			id = ID(t.size)
		default:
			return t, true
		}
	}
	return typ{}, false
}

// name gives the name at an offset; "": there is none, or it has characters that no name in C has.
func (s *Spec) name(off uint32) string {
	for s.base != nil && off < s.strOff {
		s = s.base
	}
	off -= s.strOff
	if uint64(off) >= uint64(len(s.strings)) {
		return ""
	}
	b := s.strings[off:min(uint64(off)+maxName, uint64(len(s.strings)))]
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("_ .$", c) >= 0) {
			return ""
		}
	}
	return ""
}

// member is a member of a struct or union, or a parameter.
type member struct {
	name string
	id   ID
	off  uint64 // bits
	bits int    // width of a bit field; 0: it is none
}

// member gives the ith member of a struct or union.
func (s *Spec) member(t *typ, i int) member {
	le, b := binary.LittleEndian, t.data[i*memberSize:]
	off := le.Uint32(b[8:])
	m := member{name: s.name(le.Uint32(b)), id: ID(le.Uint32(b[4:])), off: uint64(off)}
	if t.flag {
		m.off, m.bits = uint64(off&0xffffff), int(off>>24)
	}
	return m
}

// param gives the ith parameter of a function.
func (s *Spec) param(t *typ, i int) member {
	le, b := binary.LittleEndian, t.data[i*paramSize:]
	return member{name: s.name(le.Uint32(b)), id: ID(le.Uint32(b[4:]))}
}

// integer tells of a number: whether it is signed, the bits that are its value, and the first of them.
func (t *typ) integer() (signed bool, bits, first int) {
	w := binary.LittleEndian.Uint32(t.data)
	return w>>24&1 != 0, int(w & 0xff), int(w >> 16 & 0xff)
}

// array tells the type of an array's elements, and how many there are.
func (t *typ) array() (elem ID, n uint32) {
	le := binary.LittleEndian
	return ID(le.Uint32(t.data)), le.Uint32(t.data[8:])
}

// hasMembers says whether the type is a struct or a union.
func (t *typ) hasMembers() bool { return t.kind == kindStruct || t.kind == kindUnion }

// sizeof gives the bytes of a value; 0: the type does not tell.
func (s *Spec) sizeof(id ID) int64 {
	n := int64(1)
	for range maxModifiers {
		t, ok := s.plain(id)
		switch t.kind {
		case kindInt, kindStruct, kindUnion, kindEnum, kindFloat, kindEnum64:
			return n * int64(t.size)
		case kindPointer:
			return n * 8
		case kindArray:
			elem, count := t.array()
			if id = elem; count == 0 || n > maxSize/int64(count) {
				return 0
			}
			n *= int64(count)
		default:
			return 0
		}
		if !ok || n > maxSize {
			return 0
		}
	}
	return 0
}

// maxSize bounds the bytes of what is stepped over.
const maxSize = 1 << 31
