package amd64

import (
	"encoding/binary"
	"math/rand/v2"
)

// The structured generator: instructions are built from the decoder's tables, so that most
// decode and most of these run.

// pointers are registers that fuzz states make data addresses, most of the time; the others
// but RSP are small numbers.
const pointers RegSet = 1<<RBX | 1<<RBP | 1<<RSI | 1<<RDI | 1<<R8 | 1<<R9 | 1<<R12 | 1<<R13

// encodings are the maps that the generator draws opcodes from, by weight.
var encodings = []struct {
	enc    Enc
	m      Map
	weight int
}{
	{EncLegacy, MapOne, 48},
	{EncLegacy, Map0F, 20},
	{EncLegacy, Map0F38, 5},
	{EncLegacy, Map0F3A, 4},
	{EncVEX, Map0F, 6},
	{EncVEX, Map0F38, 5},
	{EncVEX, Map0F3A, 4},
	{EncEVEX, Map0F, 4},
	{EncEVEX, Map0F38, 4},
	{EncEVEX, Map0F3A, 3},
	{EncXOP, MapXOP8, 1},
}

// generator makes instructions.
type generator struct{ *rand.Rand }

// one in n.
func (g generator) one(n int) bool { return g.IntN(n) == 0 }

// inst makes one instruction that decodes, most of the time one that has something to do.
func (g generator) inst() []byte {
	for {
		b := g.encoded()
		in, err := Decode(b)
		if err != nil || !g.likely(&in) && !g.one(10) {
			continue
		}
		if in.DispLen == 4 && !in.RIPMem && !g.one(10) {
			binary.LittleEndian.PutUint32(b[in.DispOff:], uint32(int32(g.IntN(2048)-1024)&^7))
		}
		return b[:in.Len]
	}
}

// likely says whether an instruction is one that the tables know, does not fault for its
// prefixes, and finds its memory where states have it.
func (g generator) likely(in *Inst) bool {
	switch {
	case in.Kind == KindPlain && in.roles()&known == 0: // mostly #UD
		return false
	case in.Prefix&PrefixLock != 0 && !lockable(in):
		return false
	case in.Effects().MayFault && privileged(in):
		return false
	case !in.HasMem() || in.RIPMem:
		return true
	}
	base, index := in.address()
	return (in.baseless() || (pointers|Set(RSP))>>base&1 != 0) && pointers>>index&1 == 0
}

// lockable finds what takes a lock prefix (SDM vol. 2A, LOCK).
func lockable(in *Inst) bool {
	if in.Enc != EncLegacy || !in.HasMem() {
		return false
	}
	op, reg := in.Opcode, in.ModRM>>3&7
	switch in.Map {
	case MapOne:
		return op < 0x38 && op&7 < 2 || op >= 0x80 && op <= 0x83 && reg != 7 || op == 0x86 || op == 0x87 ||
			(op == 0xf6 || op == 0xf7) && (reg == 2 || reg == 3) || (op == 0xfe || op == 0xff) && reg < 2
	case Map0F:
		return op == 0xb0 || op == 0xb1 || op == 0xc0 || op == 0xc1 || op == 0xab || op == 0xb3 || op == 0xbb || op == 0xba && reg > 4 || op == 0xc7 && reg == 1
	}
	return false
}

// privileged finds what a program may not do, and what is mostly undone by its operands.
func privileged(in *Inst) bool {
	op := in.Opcode
	switch {
	case in.Enc != EncLegacy:
		return false
	case in.Map == MapOne:
		return op >= 0x6c && op <= 0x6f || op == 0x8e || op >= 0xe4 && op <= 0xe7 || op >= 0xec && op <= 0xef || op == 0xf4 || op == 0xfa || op == 0xfb
	case in.Map == Map0F:
		return op <= 0x03 || op >= 0x06 && op <= 0x09 || op >= 0x20 && op <= 0x23 || op >= 0x30 && op <= 0x37 || op == 0x78 || op == 0x79 ||
			op == 0xa1 || op == 0xa9 || op == 0xb2 || op == 0xb4 || op == 0xb5
	}
	return false
}

// encoded makes the bytes of something in one of the encodings, and more.
func (g generator) encoded() []byte {
	n := 0
	for _, e := range encodings {
		n += e.weight
	}
	n = g.IntN(n)
	for _, e := range encodings {
		if n -= e.weight; n < 0 {
			return g.tail(g.head(e.enc, e.m))
		}
	}
	return nil
}

// head makes prefixes and the opcode.
func (g generator) head(enc Enc, m Map) []byte {
	switch enc {
	case EncVEX:
		return append(g.segment(nil), g.vex(m)...)
	case EncEVEX:
		return append(g.segment(nil), g.evex(m)...)
	case EncXOP:
		return []byte{0x8f, 0xe0 | byte(m), g.byte() & 0x7c, g.byte()}
	}
	b := g.prefixes()
	if g.one(2) {
		b = append(b, 0x48|g.byte()&0xf)
	} else if g.one(3) {
		b = append(b, 0x40|g.byte()&0xf)
	}
	switch m {
	case Map0F:
		b = append(b, 0x0f)
	case Map0F38:
		b = append(b, 0x0f, 0x38)
	case Map0F3A:
		b = append(b, 0x0f, 0x3a)
	}
	return append(b, g.byte())
}

func (g generator) byte() byte { return byte(g.Uint32()) }

// prefixes makes legacy prefixes, also such as mean nothing.
func (g generator) prefixes() (b []byte) {
	for _, p := range []struct {
		odds int
		of   []byte
	}{
		{6, []byte{0x66}},
		{8, []byte{0xf2, 0xf3}},
		{20, []byte{0x64, 0x65}},
		{40, []byte{0x26, 0x2e, 0x36, 0x3e}},
		{24, []byte{0x67}},
		{40, []byte{0xf0}},
		{60, []byte{0x66, 0xf2, 0xf3, 0x2e, 0x40, 0x48}}, // a second one, or a void REX
	} {
		if g.one(p.odds) {
			b = append(b, p.of[g.IntN(len(p.of))])
		}
	}
	g.Shuffle(len(b), func(i, j int) { b[i], b[j] = b[j], b[i] })
	return b
}

// segment makes what may stand before VEX and EVEX.
func (g generator) segment(b []byte) []byte {
	if g.one(16) {
		b = append(b, []byte{0x64, 0x65, 0x67, 0x3e}[g.IntN(4)])
	}
	return b
}

// selector makes the bits W, L and pp of VEX and EVEX; most opcodes behind 0F 38 and 0F 3A have
// the prefix 66.
func (g generator) selector(m Map) byte {
	p := g.byte() & 0x87
	if m != Map0F && !g.one(4) {
		p = p&^3 | 1
	}
	if g.one(2) {
		p &^= 0x80
	}
	return p
}

// vvvv makes the register of VEX and EVEX, inverted: none, every other time.
func (g generator) vvvv() byte {
	if g.one(2) {
		return 0x78
	}
	return g.byte() & 0x78
}

// vex makes C5 or C4 and the opcode.
func (g generator) vex(m Map) []byte {
	p := g.selector(m) | g.vvvv()
	if m == Map0F && g.one(2) {
		return []byte{0xc5, p&0x7f | g.byte()&0x80, g.byte()}
	}
	return []byte{0xc4, g.byte()&0xe0 | byte(m), p, g.byte()}
}

// evex makes 62 and the opcode.
func (g generator) evex(m Map) []byte {
	p := g.byte()&0x6f | 8
	if g.one(2) {
		p &= 0x68 // no mask, no broadcast
	}
	return []byte{0x62, g.byte()&0xe0 | 0x10 | byte(m), g.selector(m)&^4 | 4 | g.vvvv(), p, g.byte()}
}

// tail makes everything that may follow an opcode; what is too much is cut off.
func (g generator) tail(b []byte) []byte {
	modrm := g.byte()
	if g.one(3) {
		modrm |= 0xc0
	}
	b = append(b, modrm)
	if modrm < 0xc0 && modrm&7 == 4 {
		b = append(b, g.byte())
	}
	switch {
	case g.one(4):
		b = binary.LittleEndian.AppendUint32(b, uint32(int32(g.IntN(2048)-1024)))
	case g.one(2):
		b = append(b, g.byte()&0x78, g.byte()&0x3f, 0, 0)
	}
	for len(b) < 2*MaxLen {
		b = append(b, g.byte())
	}
	return b
}

// code makes n instructions.
func (g generator) code(n int) (b []byte) {
	for range n {
		b = append(b, g.inst()...)
	}
	return b
}

// hazard finds instructions that are not run: they tell the copy's address by design (see
// Relocate), or wait, or talk to a hypervisor. EVEX with its X bit for a general register, which
// means nothing, gives another value than RSP's on AMD's Zen 5 where pushes are close.
func hazard(in *Inst) bool {
	reg := in.ModRM >> 3 & 7
	switch {
	case in.Enc == EncREX2 || in.Kind == KindXbegin:
		return true
	case in.Enc == EncEVEX:
		return in.Mod() == 3 && in.Rex&2 != 0 && in.roles()&(eR|eW) != 0
	case in.Enc == EncLegacy && in.Map == MapOne:
		return (in.Opcode == 0xd9 || in.Opcode == 0xdd) && in.Mod() != 3 && reg >= 6 // fnstenv, fnsave
	case in.Enc == EncLegacy && in.Map == Map0F && in.Opcode == 0x01:
		return in.Mod() == 3 && in.ModRM != 0xd0 && in.ModRM != 0xfc && in.ModRM != 0xd6 // xgetbv, clzero, xtest
	case in.Enc == EncLegacy && in.Map == Map0F && in.Opcode == 0xae:
		return in.Mod() != 3 && (reg == 0 || reg == 4 || reg == 6) || in.Mod() == 3 && reg == 6 && in.Prefix != 0 // xsave, umwait
	case in.Enc == EncLegacy && in.Map == Map0F && in.Opcode == 0xc7:
		return in.Mod() != 3 && (reg == 4 || reg == 5)
	}
	return false
}
