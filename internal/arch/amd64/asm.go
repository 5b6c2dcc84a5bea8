package amd64

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrReach is the cause of an error about an address that a PC-relative field can not
// reach: the same code put nearer to what it names can work.
var ErrReach = errors.New("address out of reach")

// maxAsmErrors is how many errors an Asm keeps; the rest follow from the first ones.
const maxAsmErrors = 8

// Asm writes machine code for one place. The code is meant to run at the address
// given to NewAsm and nowhere else. Methods are called in the order of the code;
// errors are kept until Finish. An Asm is for one goroutine.
//
// Sizes are operand sizes in bytes: 1, 2, 4 or 8. As the processor does, a write of 4
// bytes to a register clears its upper half, and a write of 1 or 2 keeps the rest. Byte
// registers are the low bytes of all sixteen (never ah, ch, dh, bh).
//
// No method touches flags unless its instruction does by itself (SDM vol. 2): MovRI, Lea
// and the moves, pushes, jumps and Nop do not.
type Asm struct {
	base   uint64
	buf    []byte
	labels []labelState
	errs   []error
	imm    [4]byte // see immBytes
}

// Label is a place in the code of one Asm, known now or later.
type Label int

type labelState struct {
	off   int // offset of the place; -1 until it is bound
	fixes []fixup
}

type fixKind uint8

const (
	fixRel8  fixKind = iota // 1 byte, from the end of the instruction
	fixRel32                // 4 bytes, from the end of the instruction
	fixAbs64                // 8 bytes, the address itself
	fixDiff                 // 8 bytes, added: the distance from the start of the code
	fixNeg                  // 8 bytes, subtracted: the same
)

// fixup is a field that holds a label's place.
type fixup struct {
	kind fixKind
	at   int // offset of the field
	end  int // offset that it counts from
}

// NewAsm starts code that will run at base.
func NewAsm(base uint64) *Asm {
	return &Asm{base: base, buf: make([]byte, 0, asmRoom), labels: make([]labelState, 0, asmLabels)}
}

// What most detours of a probe that counts take.
const (
	asmRoom   = 256
	asmLabels = 10
)

// reuse empties an Asm for code at another place.
func (a *Asm) reuse(base uint64) {
	a.base, a.buf, a.labels, a.errs = base, a.buf[:0], a.labels[:0], nil
}

// Base is the address of the first byte.
func (a *Asm) Base() uint64 { return a.base }

// Addr is the address of the next byte.
func (a *Asm) Addr() uint64 { return a.base + uint64(len(a.buf)) }

// Len is the number of bytes written so far.
func (a *Asm) Len() int { return len(a.buf) }

// Bytes is the code so far. Fields that name a label not bound yet are zero. The slice
// is the Asm's own and valid until the next call.
func (a *Asm) Bytes() []byte { return a.buf }

// Err is what Finish would say about the code so far, labels not yet bound apart.
func (a *Asm) Err() error { return errors.Join(a.errs...) }

// Finish gives the code, or what was wrong with it: errors of the methods, labels that
// are used and were never bound.
func (a *Asm) Finish() ([]byte, error) {
	for i := range a.labels {
		if l := &a.labels[i]; l.off < 0 && len(l.fixes) > 0 {
			a.fail("label %d used at %#x and never bound", i, a.base+uint64(l.fixes[0].at))
		}
	}
	if len(a.errs) > 0 {
		return nil, a.Err()
	}
	return a.buf, nil
}

func (a *Asm) fail(format string, args ...any) {
	if len(a.errs) < maxAsmErrors {
		a.errs = append(a.errs, fmt.Errorf("code at %#x: "+format, append([]any{a.Addr()}, args...)...))
	}
}

// Label makes a label to be bound later.
func (a *Asm) Label() Label {
	n := len(a.labels)
	a.labels = slices.Grow(a.labels, 1)[:n+1]
	a.labels[n] = labelState{off: -1, fixes: a.labels[n].fixes[:0]} // of code before: see reuse
	return Label(n)
}

// Here makes a label for the next byte.
func (a *Asm) Here() Label {
	l := a.Label()
	a.Bind(l)
	return l
}

// Bind puts l at the next byte. A label is bound once.
func (a *Asm) Bind(l Label) {
	s := a.label(l)
	if s == nil {
		return
	}
	if s.off >= 0 {
		a.fail("label %d bound twice", l)
		return
	}
	s.off = len(a.buf)
	for _, f := range s.fixes {
		a.apply(f, s.off)
	}
	s.fixes = s.fixes[:0]
}

// LabelAddr is the address of a label that is bound already.
func (a *Asm) LabelAddr(l Label) uint64 {
	s := a.label(l)
	if s == nil {
		return 0
	}
	if s.off < 0 {
		a.fail("label %d asked for its address before it is bound", l)
		return 0
	}
	return a.base + uint64(s.off)
}

func (a *Asm) label(l Label) *labelState {
	if l < 0 || int(l) >= len(a.labels) {
		a.fail("label %d is not of this code", l)
		return nil
	}
	return &a.labels[l]
}

// use makes the field f name l, now or when l is bound.
func (a *Asm) use(l Label, f fixup) {
	switch s := a.label(l); {
	case s == nil:
	case s.off >= 0:
		a.apply(f, s.off)
	default:
		s.fixes = append(s.fixes, f)
	}
}

// apply writes the field f for a label at offset off.
func (a *Asm) apply(f fixup, off int) {
	field, rel := a.buf[f.at:], off-f.end
	switch f.kind {
	case fixRel8:
		if rel != int(int8(rel)) {
			a.fail("%w: short branch at %#x needs a distance of %d", ErrReach, a.base+uint64(f.at), rel)
		}
		field[0] = byte(rel)
	case fixRel32:
		if rel != int(int32(rel)) {
			a.fail("%w: branch at %#x needs a distance of %d", ErrReach, a.base+uint64(f.at), rel)
		}
		binary.LittleEndian.PutUint32(field, uint32(rel))
	case fixAbs64:
		binary.LittleEndian.PutUint64(field, a.base+uint64(off))
	case fixDiff:
		binary.LittleEndian.PutUint64(field, binary.LittleEndian.Uint64(field)+uint64(off))
	case fixNeg:
		binary.LittleEndian.PutUint64(field, binary.LittleEndian.Uint64(field)-uint64(off))
	}
}

// rel32 is the distance from the address end to addr, if 32 bits hold it.
func rel32(end, addr uint64) (int32, bool) {
	d := int64(addr - end)
	return int32(d), d >= math.MinInt32 && d <= math.MaxInt32
}

// putRel32 appends the distance from the end of the field to addr.
func (a *Asm) putRel32(addr uint64) {
	d, ok := rel32(a.Addr()+4, addr)
	if !ok {
		a.fail("%w: %#x is %d bytes away", ErrReach, addr, int64(addr-a.Addr()-4))
	}
	a.buf = binary.LittleEndian.AppendUint32(a.buf, uint32(d))
}

// putLabel32 appends a field for the distance to l from extra bytes after it.
func (a *Asm) putLabel32(l Label, extra int) {
	at := len(a.buf)
	a.buf = append(a.buf, 0, 0, 0, 0)
	a.use(l, fixup{fixRel32, at, at + 4 + extra})
}

// Raw appends bytes as they are.
func (a *Asm) Raw(b ...byte) { a.buf = append(a.buf, b...) }

// Data32 appends v, little-endian.
func (a *Asm) Data32(v uint32) { a.buf = binary.LittleEndian.AppendUint32(a.buf, v) }

// Data64 appends v, little-endian.
func (a *Asm) Data64(v uint64) { a.buf = binary.LittleEndian.AppendUint64(a.buf, v) }

// DataAddr appends the 8-byte address of l.
func (a *Asm) DataAddr(l Label) {
	at := len(a.buf)
	a.Data64(0)
	a.use(l, fixup{kind: fixAbs64, at: at})
}

// DataDiff appends the 8-byte distance from the label from to the label to.
func (a *Asm) DataDiff(to, from Label) {
	at := len(a.buf)
	a.Data64(0)
	a.use(to, fixup{kind: fixDiff, at: at})
	a.use(from, fixup{kind: fixNeg, at: at})
}

// Align pads with nops up to an address that n, a power of two up to 4096, divides.
func (a *Asm) Align(n int) {
	if n <= 0 || n > 4096 || n&(n-1) != 0 {
		a.fail("alignment of %d is no power of two up to 4096", n)
		return
	}
	a.Nop(int(-a.Addr() & uint64(n-1)))
}

// nops are the recommended sequences (SDM vol. 2B, NOP, table 4-12).
var nops = [...]string{
	"\x90",
	"\x66\x90",
	"\x0f\x1f\x00",
	"\x0f\x1f\x40\x00",
	"\x0f\x1f\x44\x00\x00",
	"\x66\x0f\x1f\x44\x00\x00",
	"\x0f\x1f\x80\x00\x00\x00\x00",
	"\x0f\x1f\x84\x00\x00\x00\x00\x00",
	"\x66\x0f\x1f\x84\x00\x00\x00\x00\x00",
}

// Nop appends n bytes that do nothing, in as few instructions as 9-byte ones allow.
func (a *Asm) Nop(n int) {
	for n > 0 {
		k := min(n, len(nops))
		a.buf = append(a.buf, nops[k-1]...)
		n -= k
	}
}
