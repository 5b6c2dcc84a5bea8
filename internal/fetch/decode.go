package fetch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"kprobes.dev/kprobes/event"
)

// ErrRecord is a record that does not fit its program: whoever shares the memory has
// written over it.
var ErrRecord = errors.New("record damaged")

// countedFault is the length of a counted string that could not be read.
const countedFault = 1<<32 - 1

// Value is one argument of one record.
type Value struct {
	Arg     *Arg
	Num     uint64       // a number, zero-extended; a bit field is taken out
	Str     []byte       // a string without its NUL, or what DecodeSpan reads; it may share memory with the record
	Fault   bool         // a string that could not be read
	Elems   []Elem       // an array
	Unknown bool         // see HideResults
	Stack   []StackFrame // callers, of a synthetic event
}

// Elem is one element of an array.
type Elem struct {
	Num   uint64
	Str   []byte
	Fault bool
}

// Decode reads the arguments of a record. The area of the arguments begins at byte base
// of rec; strings are found by their offset from the start of rec. comm is the thread's
// name, for $comm. The values share memory with rec, which must not be shared with
// anybody else. Its errors wrap ErrRecord.
func (p *Program) Decode(rec []byte, base int, comm string) ([]Value, error) {
	return p.DecodeInto(make([]Value, 0, len(p.Args)), rec, base, comm)
}

// DecodeInto is Decode with the values behind those of dst.
func (p *Program) DecodeInto(dst []Value, rec []byte, base int, comm string) ([]Value, error) {
	if base < 0 || len(rec)-base < p.Fixed {
		return dst, fmt.Errorf("%w: %d bytes, too short for arguments of %d at %d", ErrRecord, len(rec), p.Fixed, base)
	}
	low := base + p.Fixed
	for i := range p.Args {
		v, err := p.Args[i].decode(rec[base:low], rec, low, comm)
		if err != nil {
			return dst, fmt.Errorf("argument %s: %w", p.Args[i].Name, err)
		}
		dst = append(dst, v)
	}
	return dst, nil
}

// HideResults marks the values that come from $retval as unknown: those of a record that
// was written where a function goes on in another one, which alone knows the result.
func HideResults(vs []Value) {
	for i := range vs {
		vs[i].Unknown = vs[i].Arg.Result
	}
}

// AtReturn says whether the value of a return probe is one of the return itself: a result, or what a register or a word of the stack holds then.
func (a *Arg) AtReturn() bool {
	return a.Result || !a.AtEntry && (a.Base.Kind == BaseReg && a.Base.Reg != RegConst || a.Base.Kind == BaseStack)
}

// HideReturn marks what a record has of the return as unknown: its call was left without one. The call has failed.
func HideReturn(vs []Value) {
	for i := range vs {
		switch a := vs[i].Arg; {
		case a.Failed:
			vs[i].Num = 1
		case a.AtReturn():
			vs[i].Unknown = true
		}
	}
}

// decode reads one value from its slot; strings lie behind byte low of the record.
func (a *Arg) decode(area, rec []byte, low int, comm string) (v Value, err error) {
	v.Arg = a
	slot := area[a.Off : a.Off+a.slot()]
	switch a.Store {
	case StoreNone:
		v.Str = a.literal(comm)
	case StoreComm:
		v.Str, _, _ = bytes.Cut(slot, []byte{0})
		if len(v.Str) == 0 {
			v.Str = []byte(comm)
		}
	case StoreValue:
		v.Num = a.Type.number(slot)
	case StoreSpan:
		v.Str = slot
	case StoreString, StoreCounted:
		v.Str, v.Fault, err = a.str(slot, rec, low)
	case StoreArray, StorePtrs:
		v.Elems, err = a.elems(slot, rec, low)
	}
	return v, err
}

func (a *Arg) literal(comm string) []byte {
	if a.Base.Kind == BaseComm {
		return []byte(comm)
	}
	return []byte(a.Base.Str)
}

func (a *Arg) elems(slot, rec []byte, low int) ([]Elem, error) {
	out := make([]Elem, a.Count)
	for i := range out {
		e := &out[i]
		if a.Store == StoreArray {
			e.Num = a.Type.number(slot[i*a.Size:])
			continue
		}
		var err error
		if e.Str, e.Fault, err = a.str(slot[8*i:], rec, low); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
	}
	return out, nil
}

// str finds the string that a slot tells of.
func (a *Arg) str(slot, rec []byte, low int) (s []byte, fault bool, err error) {
	w := binary.LittleEndian.Uint64(slot)
	n, off := uint64(uint32(w)), w>>32
	counted := a.Store == StoreCounted
	switch {
	case counted && n == countedFault, !counted && n == 0:
		return nil, true, nil
	case n == 0:
		return nil, false, nil
	case n > MaxString || off < uint64(low) || off+n > uint64(len(rec)):
		return nil, false, fmt.Errorf("%w: string of %d bytes at %d of %d", ErrRecord, n, off, len(rec))
	}
	s = rec[off : off+n : off+n]
	if counted {
		return s, false, nil
	}
	if i := bytes.IndexByte(s, 0); i >= 0 {
		s = s[:i]
	}
	return s, false, nil
}

// number reads a number of the type's size, which is 1, 2, 4 or 8; b holds at least that many bytes.
func (t Type) number(b []byte) uint64 {
	var v uint64
	switch t.Size {
	case 1:
		v = uint64(b[0])
	case 2:
		v = uint64(binary.LittleEndian.Uint16(b))
	case 4:
		v = uint64(binary.LittleEndian.Uint32(b))
	default:
		v = binary.LittleEndian.Uint64(b)
	}
	if t.Width > 0 {
		v = v >> t.Shift & (1<<t.Width - 1)
	}
	return v
}

// Int gives a number of a signed type sign-extended, of any other as it is.
func (t Type) Int(v uint64) int64 {
	if t.Kind != event.Signed {
		return int64(v)
	}
	shift := 64 - 8*t.Size
	if t.Width > 0 {
		shift = 64 - t.Width
	}
	return int64(v<<shift) >> shift
}
