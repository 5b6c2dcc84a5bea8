package amd64

import (
	"errors"
	"fmt"
)

// MaxLen is the greatest length of an instruction in bytes (SDM vol. 2A
// section 2.3.11).
const MaxLen = 15

// What keeps bytes from being decoded. The errors of Decode wrap one of them.
var (
	// ErrTruncated: the bytes end before the instruction does. More bytes help.
	ErrTruncated = errors.New("instruction cut off")
	// ErrInvalid: no processor runs these bytes in 64-bit mode.
	ErrInvalid = errors.New("invalid instruction in 64-bit mode")
)

// DecodeError is the error of Decode.
type DecodeError struct {
	Bytes []byte // what was looked at, at most MaxLen bytes
	Off   int    // the byte that decided
	Err   error  // ErrTruncated or ErrInvalid
}

func (e *DecodeError) Error() string {
	if errors.Is(e.Err, ErrTruncated) {
		return fmt.Sprintf("%v after %d bytes (% x): pass up to %d", e.Err, len(e.Bytes), e.Bytes, MaxLen)
	}
	return fmt.Sprintf("%v: % x, because of byte %d", e.Err, e.Bytes, e.Off)
}

// Unwrap gives the sentinel.
func (e *DecodeError) Unwrap() error { return e.Err }

// decoder walks over the bytes of one instruction.
type decoder struct {
	Inst
	code []byte // at most MaxLen bytes
	pos  int
	bad  bool // invalid at pos
}

// Decode decodes the instruction at the start of code in 64-bit mode. Up to
// MaxLen bytes are looked at. It refuses what raises #UD on every processor by
// its opcode or encoding, and takes unassigned opcodes of the VEX, EVEX, 0F 38 and
// 0F 3A maps, since their length is known. The prefix 66 does not change the
// displacement of near branches, as on Intel; AMD cuts it, and the instruction
// pointer, to 16 bits.
//
// On failure the error is a *DecodeError that wraps ErrTruncated or ErrInvalid.
func Decode(code []byte) (Inst, error) {
	layouts.need(makeLayouts)
	d := decoder{code: code}
	if len(code) > MaxLen {
		d.code = code[:MaxLen]
	}
	if l, ok := d.opcode(); ok && d.operands(l) {
		d.Len = uint8(d.pos)
		return d.Inst, nil
	}
	return Inst{}, d.fail()
}

func (d *decoder) fail() error {
	e := &DecodeError{Bytes: append([]byte(nil), d.code...), Off: d.pos, Err: ErrInvalid}
	if !d.bad && len(d.code) < MaxLen {
		e.Err = ErrTruncated
	}
	return e
}

// invalid ends decoding at the byte off.
func (d *decoder) invalid(off int) bool {
	d.bad, d.pos = true, off
	return false
}

// opcode reads everything up to the opcode and gives the layout of what follows.
func (d *decoder) opcode() (layout, bool) {
	for d.pos < len(d.code) {
		b := d.code[d.pos]
		l := oneByte[b]
		if l&isPrefix == 0 {
			return d.found(l, d.pos)
		}
		if p := prefixBits[b]; p != 0 {
			d.Prefix |= p
			d.Rex, d.RexOff = 0, 0
			d.pos++
			continue
		}
		if b&0xf0 != 0x40 {
			return d.escape(b)
		}
		d.Rex, d.RexOff = b, uint8(d.pos)
		d.pos++
	}
	return 0, false
}

// prefixBits has the legacy prefixes (SDM vol. 2A section 2.1.1).
var prefixBits = [256]Prefixes{
	0xf0: PrefixLock,
	0xf2: PrefixRepne,
	0xf3: PrefixRep,
	0x2e: PrefixCS,
	0x36: PrefixSS,
	0x3e: PrefixDS,
	0x26: PrefixES,
	0x64: PrefixFS,
	0x65: PrefixGS,
	0x66: PrefixOpSize,
	0x67: PrefixAddrSize,
}

// found takes the opcode at off.
func (d *decoder) found(l layout, off int) (layout, bool) {
	if l&isBad != 0 || l&isPrefix != 0 {
		return 0, d.invalid(off)
	}
	d.Opcode, d.OpOff, d.Kind = d.code[off], uint8(off), l.kind()
	d.pos = off + 1
	return l, true
}

// lookup takes the opcode at off out of a map; t is nil for a map that is not.
func (d *decoder) lookup(t *table, m Map, off int) (layout, bool) {
	if t == nil {
		return 0, d.invalid(off - 1)
	}
	if off >= len(d.code) {
		return 0, false
	}
	d.Map = m
	return d.found(t[d.code[off]], off)
}

// escape goes into the encoding or map that b starts.
func (d *decoder) escape(b byte) (layout, bool) {
	switch b {
	case 0x0f:
		return d.escape0F()
	case 0xd5:
		return d.rex2()
	case 0xc5:
		return d.vex2()
	case 0xc4:
		return d.vex3()
	case 0x62:
		return d.evex()
	}
	return d.popOrXOP()
}

func (d *decoder) escape0F() (layout, bool) {
	d.pos++
	if d.pos >= len(d.code) {
		return 0, false
	}
	switch d.code[d.pos] {
	case 0x38:
		return d.lookup(legacyMaps[Map0F38], Map0F38, d.pos+1)
	case 0x3a:
		return d.lookup(legacyMaps[Map0F3A], Map0F3A, d.pos+1)
	case 0x0f:
		return d.lookup(legacyMaps[Map0F], Map3DN, d.pos)
	}
	return d.lookup(legacyMaps[Map0F], Map0F, d.pos)
}

// payload opens a prefix of n bytes at pos that takes the place of REX. Only
// REX2 may follow 66, F2, F3 or lock (SDM vol. 2A section 2.3.2).
func (d *decoder) payload(e Enc, n int) ([]byte, bool) {
	const selectors = PrefixLock | PrefixRep | PrefixRepne | PrefixOpSize
	if d.Rex != 0 || e != EncREX2 && d.Prefix&selectors != 0 {
		return nil, d.invalid(d.pos)
	}
	if d.pos+n > len(d.code) {
		return nil, false
	}
	d.Enc, d.RexOff = e, uint8(d.pos)
	return d.code[d.pos : d.pos+n], true
}

// ppBits are the prefixes that the pp field stands for.
var ppBits = [4]Prefixes{0, PrefixOpSize, PrefixRep, PrefixRepne}

// rex2 reads D5 M0R4X4B4WR3X3B3 (APX specification section 3.1.1).
func (d *decoder) rex2() (layout, bool) {
	p, ok := d.payload(EncREX2, 2)
	if !ok {
		return 0, false
	}
	d.Rex, d.Ext = 0x40|p[1]&0xf, p[1]>>4&7
	m, refused := MapOne, uint16(1<<0x4|1<<0x7|1<<0xa|1<<0xe)
	if p[1]&0x80 != 0 {
		m, refused = Map0F, 1<<0x3|1<<0x8
	}
	off := d.pos + 2
	switch {
	case off >= len(d.code):
		return 0, false
	case m == MapOne && d.code[off] == 0xa1:
		return d.found(jmpabs, off)
	case refused>>(d.code[off]>>4)&1 != 0:
		return 0, d.invalid(off)
	}
	return d.lookup(legacyMaps[m], m, off)
}

// vex2 reads C5 R'v'v'v'v'Lpp, where ' marks inverted bits (SDM vol. 2A section
// 2.3.5).
func (d *decoder) vex2() (layout, bool) {
	p, ok := d.payload(EncVEX, 2)
	if !ok {
		return 0, false
	}
	d.Rex = 0x40 | ^p[1]>>5&4
	d.Vvvv = ^p[1] >> 3 & 0xf
	d.Prefix |= ppBits[p[1]&3]
	return d.lookup(vexMaps[1], Map0F, d.pos+2)
}

// vex3 reads C4 R'X'B'mmmmm Wv'v'v'v'Lpp.
func (d *decoder) vex3() (layout, bool) {
	p, ok := d.payload(EncVEX, 3)
	if !ok {
		return 0, false
	}
	d.threeByte(p)
	m := Map(p[1] & 0x1f)
	return d.lookup(vexMaps[m], m, d.pos+3)
}

// threeByte takes what VEX, XOP and EVEX hold at the same places.
func (d *decoder) threeByte(p []byte) {
	d.Rex = 0x40 | ^p[1]>>5 | p[2]>>4&8
	d.Vvvv = ^p[2] >> 3 & 0xf
	d.Prefix |= ppBits[p[2]&3]
}

// evex reads 62 R3'X3'B3'R4'B4mmm Wv'v'v'v'X4'pp zLLbV4'aaa (SDM vol. 2A section
// 2.7.1, with the bits of APX).
func (d *decoder) evex() (layout, bool) {
	p, ok := d.payload(EncEVEX, 4)
	if !ok {
		return 0, false
	}
	d.threeByte(p)
	d.Vvvv |= ^p[3] << 1 & 0x10
	d.Ext = ^p[1]>>2&4 | ^p[2]>>1&2 | p[1]>>3&1
	m := Map(p[1] & 7)
	return d.lookup(evexMaps[m], m, d.pos+4)
}

// popOrXOP tells pop r/m (8F /0) from XOP (8F R'X'B'mmmmm Wv'v'v'v'Lpp), whose map
// is at least 8 (APM vol. 3 section 1.2.7).
func (d *decoder) popOrXOP() (layout, bool) {
	if d.pos+1 >= len(d.code) {
		return 0, false
	}
	switch m := Map(d.code[d.pos+1] & 0x1f); {
	case m >= 8:
		p, ok := d.payload(EncXOP, 3)
		if !ok {
			return 0, false
		}
		d.threeByte(p)
		return d.lookup(xopMaps[m], m, d.pos+3)
	case d.code[d.pos+1]&0x38 != 0:
		return 0, d.invalid(d.pos + 1)
	}
	return d.found(hasModRM, d.pos)
}

// operands reads what follows the opcode.
func (d *decoder) operands(l layout) bool {
	if l&hasModRM != 0 {
		if d.pos >= len(d.code) {
			return false
		}
		d.HasModRM, d.ModRM, d.ModRMOff = true, d.code[d.pos], uint8(d.pos)
		if l&isGroup != 0 {
			if l = d.group(l); l&isBad != 0 {
				return d.invalid(d.pos)
			}
		}
		d.pos++
		if l&noMem == 0 && d.ModRM < 0xc0 && !d.memory() {
			return false
		}
	}
	return d.immediate(l & immMask)
}

// memory reads SIB and displacement (SDM vol. 2A tables 2-2 and 2-3).
func (d *decoder) memory() bool {
	base := d.ModRM & 7
	if base == 4 {
		if d.pos >= len(d.code) {
			return false
		}
		d.HasSIB, d.SIB = true, d.code[d.pos]
		d.pos++
		base = d.SIB & 7
	}
	switch d.ModRM >> 6 {
	case 1:
		d.DispLen = 1
	case 2:
		d.DispLen = 4
	default:
		if base != 5 {
			return true
		}
		d.DispLen = 4
		d.RIPMem = !d.HasSIB
	}
	d.DispOff = uint8(d.pos)
	if d.pos += int(d.DispLen); d.pos > len(d.code) {
		return false
	}
	if d.RIPMem {
		d.relative(d.DispOff, d.DispLen)
	}
	return true
}

// relative sets the PC-relative field.
func (d *decoder) relative(off, n uint8) {
	d.RelOff, d.RelLen = off, n
	d.Rel = signed(d.code[off : off+n])
}
