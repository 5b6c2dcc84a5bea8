package symbol

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// What tracebacks need to print a function's arguments (internal/abi, type.go, Go 1.17 to 1.26):
// a byte for the offset of each word above the return address and one for its size, and between
// these
const (
	ArgsEnd       = 0xff // the end
	ArgsOpen      = 0xfe // a value of several begins: a string, a slice, a struct …
	ArgsClose     = 0xfd // and ends
	ArgsMore      = 0xfc // there is more, or deeper
	ArgsFar       = 0xfb // a word whose offset is this or more: ArgsFarOffset
	ArgsFarOffset = 0xf0

	ArgsLimit    = 10 // words that are told
	ArgsMaxDepth = 5

	argsMaxLen  = (ArgsMaxDepth*3+2)*ArgsLimit + 1
	noFuncdata  = ^uint32(0)
	argInfo     = 5  // index of the function's data (internal/abi, FUNCDATA_ArgInfo)
	funcSize    = 44 // of _func, from Go 1.20 on
	funcNpcdata = 28
)

// argsOffset gives where the arguments' description of a _func lies from the start of all such
// data; noFuncdata if there is none. ok is false if the table does not tell.
func argsOffset(b []byte) (off uint32, ok bool) {
	le := binary.LittleEndian
	if b[funcSize-1] <= argInfo {
		return noFuncdata, true
	}
	at := funcSize + 4*uint64(le.Uint32(b[funcNpcdata:])) + 4*argInfo
	if at+4 > uint64(len(b)) {
		return noFuncdata, false
	}
	return le.Uint32(b[at:]), true
}

// GoArgs gives the description of a Go function's parameters that tracebacks go by, without
// ArgsEnd. It is in stripped programs too. ok is false if it was not found.
func (im *Image) GoArgs(fn *Func) (args []byte, ok bool) {
	t := im.table().goTab
	f := t.at(fn.Addr)
	if f == nil || f.asm || !f.told {
		return nil, false
	}
	base := im.funcdataBase()
	if base == 0 {
		return nil, false
	}
	if f.argInfo == noFuncdata {
		return nil, true
	}
	return im.argsAt(base+uint64(f.argInfo), f.args)
}

// funcdataBase is findFuncdata, once.
func (im *Image) funcdataBase() uint64 {
	im.funcdataOnce.Do(func() { im.funcdata = im.findFuncdata() })
	return im.funcdata
}

// argsAt reads a description, and checks it: frame is the size of the argument frame.
func (im *Image) argsAt(vaddr uint64, frame int32) (args []byte, ok bool) {
	off, have, ok := im.elf.fileRange(vaddr)
	if !ok {
		return nil, false
	}
	b, err := im.elf.bytesAt(off, min(have, argsMaxLen), "arguments")
	if err != nil {
		return nil, false
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch o := b[i]; {
		case o == ArgsEnd:
			return b[:i], depth == 0
		case o == ArgsOpen:
			depth++
		case o == ArgsClose:
			depth--
		case o == ArgsMore || o == ArgsFar:
		case o > ArgsFarOffset || i+1 == len(b) || frame >= 0 && int32(o)+int32(b[i+1]) > frame:
			return nil, false
		default:
			i++
		}
		if depth < 0 {
			return nil, false
		}
	}
	return nil, false
}

// findFuncdata finds what the offsets of the functions' data count from: a field of the
// moduledata, whose place differs between versions. It is the one with which all that is looked at
// makes sense.
func (im *Image) findFuncdata() uint64 {
	const probe, fields, least = 256, 64, 16
	t := im.table().goTab
	var some []*goFunc
	for i := range t.funcs {
		if f := &t.funcs[i]; f.told && !f.asm && f.argInfo != noFuncdata {
			some = append(some, f)
		}
	}
	if len(some) < least {
		return 0
	}
	step := max(len(some)/probe, 1)
	fits := func(base uint64) bool {
		for i := 0; i < len(some); i += step {
			if _, ok := im.argsAt(base+uint64(some[i].argInfo), some[i].args); !ok {
				return false
			}
		}
		return true
	}
	for _, at := range im.elf.moduledataPlaces(&im.dyn, t.vaddr) {
		b, err := im.elf.vaddrBytes(at, mdSize+8*fields, "moduledata")
		if err != nil {
			continue
		}
		if b, err = im.relocated(b, at); err != nil {
			continue
		}
		for i := mdSize; i+8 <= len(b); i += 8 {
			if base := binary.LittleEndian.Uint64(b[i:]); base != 0 && fits(base) {
				return base
			}
		}
	}
	return 0
}

// ArgsText writes a description of parameters: SIZE@OFFSET for each word, in braces what belongs
// together.
func ArgsText(args []byte) string {
	var s strings.Builder
	for i, first := 0, true; i < len(args); i++ {
		if o := args[i]; o != ArgsClose && !first {
			s.WriteString(", ")
		}
		first = args[i] == ArgsOpen
		switch args[i] {
		case ArgsOpen:
			s.WriteByte('{')
		case ArgsClose:
			s.WriteByte('}')
		case ArgsMore:
			s.WriteString("…")
		case ArgsFar:
			s.WriteByte('_')
		default:
			if i+1 < len(args) {
				fmt.Fprintf(&s, "%d@%d", args[i+1], args[i])
			}
			i++
		}
	}
	return "(" + s.String() + ")"
}
