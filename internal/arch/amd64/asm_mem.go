package amd64

import "encoding/binary"

// Seg is a segment override. On x86-64 only FS and GS move an address.
type Seg uint8

// Segments.
const (
	SegNone Seg = iota
	SegFS
	SegGS
)

// MemKind says how a Mem is addressed.
type MemKind uint8

// Ways of addressing.
const (
	MemBase  MemKind = iota // Base + Index*Scale + Disp
	MemIndex                // Index*Scale + Disp, no base
	MemDisp                 // Disp alone, sign-extended: what fs: and gs: offsets use
	MemAddr                 // the address Addr, RIP-relative
	MemLabel                // the label Label, plus Disp, RIP-relative
)

// Mem is a memory operand. Mem{Base: RSI, Disp: 8} is 8(%rsi).
type Mem struct {
	Kind  MemKind
	Seg   Seg
	Base  Reg
	Index Reg   // used if Scale is not 0; never RSP
	Scale uint8 // 0: no index; 1, 2, 4, 8
	Disp  int32
	Addr  uint64
	Label Label
}

// At is disp(base).
func At(base Reg, disp int32) Mem { return Mem{Base: base, Disp: disp} }

// AtIndex is disp(base,index,scale).
func AtIndex(base, index Reg, scale uint8, disp int32) Mem {
	return Mem{Base: base, Index: index, Scale: scale, Disp: disp}
}

// AtAddr is a fixed address, encoded as RIP-relative: within 2 GB of the code.
func AtAddr(addr uint64) Mem { return Mem{Kind: MemAddr, Addr: addr} }

// AtLabel is a place in the same code plus disp bytes, encoded as RIP-relative.
func AtLabel(l Label, disp int32) Mem { return Mem{Kind: MemLabel, Label: l, Disp: disp} }

// AtFS is %fs:disp, a word of the thread's control block.
func AtFS(disp int32) Mem { return Mem{Kind: MemDisp, Seg: SegFS, Disp: disp} }

// AtGS is %gs:disp, a word of the CPU's own data in a kernel.
func AtGS(disp int32) Mem { return Mem{Kind: MemDisp, Seg: SegGS, Disp: disp} }

// form is what an instruction with ModRM consists of beside its operands.
type form struct {
	size   int    // operand size: 2 gives 66, 8 gives REX.W; 1 makes rexByte count
	pre    byte   // mandatory prefix F2 or F3; 0 for none
	op     uint32 // opcode: 0xNN, 0x0fNN or 0x0fNNNN
	reg    byte   // ModRM.reg: a register or an opcode extension
	lowReg bool   // reg is a byte register: 4 to 7 need a REX prefix
	lowRM  bool   // so is rm
	imm    []byte
}

// sized gives the opcode for a size where the byte form has the lowest bit clear, as
// in most of the one-byte map.
func sized(size int, op uint32) uint32 {
	if size == 1 {
		return op &^ 1
	}
	return op
}

// checkSize says whether size is an operand size.
func (a *Asm) checkSize(size int) bool {
	switch size {
	case 1, 2, 4, 8:
		return true
	}
	a.fail("operand size %d is not 1, 2, 4 or 8", size)
	return false
}

// prefixes appends what stands before the opcode, and the opcode.
func (a *Asm) prefixes(f *form, rex byte, force bool) {
	if f.size == 2 {
		a.Raw(0x66)
	}
	if f.pre != 0 {
		a.Raw(f.pre)
	}
	if f.size == 8 {
		rex |= 8
	}
	if rex != 0 || force {
		a.Raw(0x40 | rex)
	}
	if f.op > 0xffff {
		a.Raw(byte(f.op >> 16))
	}
	if f.op > 0xff {
		a.Raw(byte(f.op >> 8))
	}
	a.Raw(byte(f.op))
}

// instR appends an instruction whose rm is a register.
func (a *Asm) instR(f form, rm Reg) {
	if !a.checkSize(f.size) {
		return
	}
	force := f.lowReg && f.reg >= 4 || f.lowRM && rm >= 4
	a.prefixes(&f, f.reg>>3<<2|byte(rm)>>3, force)
	a.Raw(0xc0 | f.reg&7<<3 | byte(rm)&7)
	a.Raw(f.imm...)
}

// instM appends an instruction whose rm is in memory.
func (a *Asm) instM(f form, m Mem) {
	if !a.checkSize(f.size) || !a.checkMem(&m) {
		return
	}
	switch m.Seg {
	case SegFS:
		a.Raw(0x64)
	case SegGS:
		a.Raw(0x65)
	case SegNone:
	}
	a.prefixes(&f, f.reg>>3<<2|m.rex(), f.lowReg && f.reg >= 4)
	a.address(f.reg&7<<3, &m, len(f.imm))
	a.Raw(f.imm...)
}

func (a *Asm) checkMem(m *Mem) bool {
	switch m.Scale {
	case 0, 1, 2, 4, 8:
	default:
		a.fail("scale %d is not 1, 2, 4 or 8", m.Scale)
		return false
	}
	if m.Kind > MemLabel || m.Seg > SegGS || m.Base > R15 || m.Index > R15 {
		a.fail("memory operand %+v is impossible", *m)
		return false
	}
	if m.hasIndex() && (m.Index == RSP || m.Scale == 0) {
		a.fail("memory operand %+v can not have that index", *m)
		return false
	}
	return true
}

func (m *Mem) hasIndex() bool {
	return m.Kind == MemIndex || m.Kind == MemBase && m.Scale != 0
}

// rex gives the X and B bits that the operand needs.
func (m *Mem) rex() byte {
	var rex byte
	if m.hasIndex() {
		rex = byte(m.Index) >> 3 << 1
	}
	if m.Kind == MemBase {
		rex |= byte(m.Base) >> 3
	}
	return rex
}

// address appends ModRM, SIB and displacement (SDM vol. 2A, tables 2-2 and 2-3). reg is
// in its place in ModRM; extra counts the bytes of the instruction that still follow.
func (a *Asm) address(reg byte, m *Mem, extra int) {
	switch m.Kind {
	case MemAddr:
		a.Raw(reg | 5)
		a.ripAddr(m.Addr, extra)
	case MemLabel:
		a.Raw(reg | 5)
		at := len(a.buf)
		a.Data32(0)
		a.use(m.Label, fixup{fixRel32, at, at + 4 + extra - int(m.Disp)})
	case MemDisp:
		a.Raw(reg|4, 0x25)
		a.Data32(uint32(m.Disp))
	case MemIndex:
		a.Raw(reg|4, m.sib(5))
		a.Data32(uint32(m.Disp))
	case MemBase:
		a.baseAddress(reg, m)
	}
}

// ripAddr appends the displacement of a RIP-relative operand at addr.
func (a *Asm) ripAddr(addr uint64, extra int) {
	end := a.Addr() + 4 + uint64(extra)
	d, ok := rel32(end, addr)
	if !ok {
		a.fail("%w: operand at %#x is %d bytes away", ErrReach, addr, int64(addr-end))
	}
	a.Data32(uint32(d))
}

// baseAddress does it for an operand with a base: the shortest displacement that holds,
// a SIB byte for rsp and r12, a displacement always for rbp and r13.
func (a *Asm) baseAddress(reg byte, m *Mem) {
	low := byte(m.Base) & 7
	mod := byte(0x80)
	switch {
	case m.Disp == 0 && low != 5:
		mod = 0
	case m.Disp == int32(int8(m.Disp)):
		mod = 0x40
	}
	if m.Scale != 0 || low == 4 {
		a.Raw(mod|reg|4, m.sib(low))
	} else {
		a.Raw(mod | reg | low)
	}
	switch mod {
	case 0x40:
		a.Raw(byte(m.Disp))
	case 0x80:
		a.buf = binary.LittleEndian.AppendUint32(a.buf, uint32(m.Disp))
	}
}

// sib gives the SIB byte for a base field; without an index, the index field is 4.
func (m *Mem) sib(base byte) byte {
	switch m.Scale {
	case 1:
		return byte(m.Index)&7<<3 | base
	case 2:
		return 0x40 | byte(m.Index)&7<<3 | base
	case 4:
		return 0x80 | byte(m.Index)&7<<3 | base
	case 8:
		return 0xc0 | byte(m.Index)&7<<3 | base
	}
	return 4<<3 | base
}
