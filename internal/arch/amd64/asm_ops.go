package amd64

import (
	"encoding/binary"
	"math"
)

// Op is an arithmetic operation by its number in the one-byte opcode map.
type Op uint8

// The arithmetic operations. All write the flags.
const (
	OpAdd Op = 0
	OpOr  Op = 1
	OpAdc Op = 2
	OpSbb Op = 3
	OpAnd Op = 4
	OpSub Op = 5
	OpXor Op = 6
	OpCmp Op = 7 // writes flags only
)

// Shift is a shift by its number in opcode C1.
type Shift uint8

// The shifts.
const (
	Ror Shift = 1
	Shl Shift = 4
	Shr Shift = 5
	Sar Shift = 7
)

// Cond is a condition by the number that instructions encode. c^1 is its opposite.
type Cond uint8

// The conditions (SDM vol. 2D, table B-1).
const (
	CondO  Cond = iota // overflow
	CondNO             // no overflow
	CondB              // below, carry
	CondAE             // above or equal, no carry
	CondE              // equal
	CondNE             // not equal
	CondBE             // below or equal
	CondA              // above
	CondS              // sign
	CondNS             // no sign
	CondP              // parity even
	CondNP             // parity odd
	CondL              // less (signed)
	CondGE             // greater or equal (signed)
	CondLE             // less or equal (signed)
	CondG              // greater (signed)
)

// immBytes gives v as the immediate of an operation of a size: 1, 2 or 4 bytes, the
// last sign-extended to 8 if size is 8. They are valid until the next call.
func (a *Asm) immBytes(size int, v int32) []byte {
	switch {
	case size == 1 && v >= math.MinInt8 && v <= math.MaxUint8,
		size == 2 && v >= math.MinInt16 && v <= math.MaxUint16,
		size > 2:
		binary.LittleEndian.PutUint32(a.imm[:], uint32(v))
		return a.imm[:min(size, len(a.imm))]
	}
	a.fail("immediate %d does not fit %d bytes", v, size)
	return nil
}

// rr, rm are the forms with a register operand of the size, in ModRM.reg.
func (a *Asm) rr(size int, op uint32, reg, rm Reg) {
	a.instR(form{size: size, op: sized(size, op), reg: byte(reg), lowReg: size == 1, lowRM: size == 1}, rm)
}

func (a *Asm) rm(size int, op uint32, reg Reg, m Mem) {
	a.instM(form{size: size, op: sized(size, op), reg: byte(reg), lowReg: size == 1}, m)
}

// extR, extM are the forms with an opcode extension in ModRM.reg.
func (a *Asm) extR(size int, op uint32, ext byte, rm Reg, imm ...byte) {
	a.instR(form{size: size, op: sized(size, op), reg: ext, lowRM: size == 1, imm: imm}, rm)
}

func (a *Asm) extM(size int, op uint32, ext byte, m Mem, imm ...byte) {
	a.instM(form{size: size, op: sized(size, op), reg: ext, imm: imm}, m)
}

// MovRR copies src to dst.
func (a *Asm) MovRR(size int, dst, src Reg) { a.rr(size, 0x89, src, dst) }

// MovRM loads dst from m.
func (a *Asm) MovRM(size int, dst Reg, m Mem) { a.rm(size, 0x8b, dst, m) }

// MovMR stores src to m.
func (a *Asm) MovMR(size int, m Mem, src Reg) { a.rm(size, 0x89, src, m) }

// MovMI stores an immediate to m; with size 8 it is sign-extended.
func (a *Asm) MovMI(size int, m Mem, imm int32) {
	a.extM(size, 0xc7, 0, m, a.immBytes(size, imm)...)
}

// MovRI sets all 64 bits of dst in the shortest form that leaves the flags alone.
func (a *Asm) MovRI(dst Reg, imm uint64) {
	switch {
	case imm <= math.MaxUint32:
		a.regOp(4, 0xb8, dst)
		a.Data32(uint32(imm))
	case int64(imm) >= math.MinInt32 && int64(imm) < 0:
		a.extR(8, 0xc7, 0, dst, binary.LittleEndian.AppendUint32(nil, uint32(imm))...)
	default:
		a.regOp(8, 0xb8, dst)
		a.Data64(imm)
	}
}

// regOp appends an opcode that holds its register in the low three bits.
func (a *Asm) regOp(size int, op byte, r Reg) {
	rex := byte(r) >> 3
	if size == 8 {
		rex |= 8
	}
	if rex != 0 {
		a.Raw(0x40 | rex)
	}
	a.Raw(op | byte(r)&7)
}

// MovZXM loads size bytes (1, 2, 4, 8) from m into all of dst, zero-extended.
func (a *Asm) MovZXM(size int, dst Reg, m Mem) {
	if size < 4 {
		a.instM(form{size: 4, op: 0xfb6 + wordBit(size), reg: byte(dst)}, m)
		return
	}
	a.MovRM(size, dst, m)
}

// MovSXM loads size bytes (1, 2, 4, 8) from m into all of dst, sign-extended.
func (a *Asm) MovSXM(size int, dst Reg, m Mem) {
	switch size {
	case 8:
		a.MovRM(8, dst, m)
	case 4:
		a.instM(form{size: 8, op: 0x63, reg: byte(dst)}, m)
	default:
		a.instM(form{size: 8, op: 0xfbe + wordBit(size), reg: byte(dst)}, m)
	}
}

// MovZXR sets all of dst to the low size bytes (1, 2, 4, 8) of src, zero-extended.
func (a *Asm) MovZXR(size int, dst, src Reg) {
	if size < 4 {
		a.instR(form{size: 4, op: 0xfb6 + wordBit(size), reg: byte(dst), lowRM: size == 1}, src)
		return
	}
	a.MovRR(size, dst, src)
}

// MovSXR sets all of dst to the low size bytes (1, 2, 4, 8) of src, sign-extended.
func (a *Asm) MovSXR(size int, dst, src Reg) {
	switch size {
	case 8:
		a.MovRR(8, dst, src)
	case 4:
		a.instR(form{size: 8, op: 0x63, reg: byte(dst)}, src)
	default:
		a.instR(form{size: 8, op: 0xfbe + wordBit(size), reg: byte(dst), lowRM: size == 1}, src)
	}
}

// wordBit is 1 for words, which is how movzx and movsx tell them from bytes.
func wordBit(size int) uint32 { return uint32(size >> 1) }

// Lea sets dst to the address of m.
func (a *Asm) Lea(dst Reg, m Mem) { a.rm(8, 0x8d, dst, m) }

// OpRR is dst = dst op src.
func (a *Asm) OpRR(op Op, size int, dst, src Reg) { a.rr(size, uint32(op)<<3|1, src, dst) }

// OpRM is dst = dst op m.
func (a *Asm) OpRM(op Op, size int, dst Reg, m Mem) { a.rm(size, uint32(op)<<3|3, dst, m) }

// OpMR is m = m op src.
func (a *Asm) OpMR(op Op, size int, m Mem, src Reg) { a.rm(size, uint32(op)<<3|1, src, m) }

// OpRI is dst = dst op imm; with size 8 the immediate is sign-extended.
func (a *Asm) OpRI(op Op, size int, dst Reg, imm int32) {
	if size > 1 && imm == int32(int8(imm)) {
		a.extR(size, 0x83, byte(op), dst, byte(imm))
		return
	}
	a.extR(size, 0x81, byte(op), dst, a.immBytes(size, imm)...)
}

// OpMI is m = m op imm; with size 8 the immediate is sign-extended.
func (a *Asm) OpMI(op Op, size int, m Mem, imm int32) {
	if size > 1 && imm == int32(int8(imm)) {
		a.extM(size, 0x83, byte(op), m, byte(imm))
		return
	}
	a.extM(size, 0x81, byte(op), m, a.immBytes(size, imm)...)
}

// TestRR sets the flags of r & s.
func (a *Asm) TestRR(size int, r, s Reg) { a.rr(size, 0x85, s, r) }

// TestRI sets the flags of r & imm.
func (a *Asm) TestRI(size int, r Reg, imm int32) {
	a.extR(size, 0xf7, 0, r, a.immBytes(size, imm)...)
}

// TestMI sets the flags of m & imm.
func (a *Asm) TestMI(size int, m Mem, imm int32) {
	a.extM(size, 0xf7, 0, m, a.immBytes(size, imm)...)
}

// IncR, IncM, DecR and DecM leave the carry flag alone.
func (a *Asm) IncR(size int, r Reg) { a.extR(size, 0xff, 0, r) }

// IncM adds 1 to m.
func (a *Asm) IncM(size int, m Mem) { a.extM(size, 0xff, 0, m) }

// DecR subtracts 1 from r.
func (a *Asm) DecR(size int, r Reg) { a.extR(size, 0xff, 1, r) }

// DecM subtracts 1 from m.
func (a *Asm) DecM(size int, m Mem) { a.extM(size, 0xff, 1, m) }

// NegR is r = -r.
func (a *Asm) NegR(size int, r Reg) { a.extR(size, 0xf7, 3, r) }

// NotR is r = ^r. It leaves the flags alone.
func (a *Asm) NotR(size int, r Reg) { a.extR(size, 0xf7, 2, r) }

// ShiftRI shifts r by n bits, 1 to 8*size-1.
func (a *Asm) ShiftRI(sh Shift, size int, r Reg, n uint8) {
	if int(n) >= 8*size || n == 0 {
		a.fail("shift by %d bits of %d bytes", n, size)
		return
	}
	a.extR(size, 0xc1, byte(sh), r, n)
}

// ShiftRCL shifts r by cl bits.
func (a *Asm) ShiftRCL(sh Shift, size int, r Reg) { a.extR(size, 0xd3, byte(sh), r) }

// ImulRR is dst = dst * src (2, 4 or 8 bytes).
func (a *Asm) ImulRR(size int, dst, src Reg) {
	a.instR(form{size: a.noByte(size), op: 0xfaf, reg: byte(dst)}, src)
}

// Bsf is dst = the number of src's lowest bit that is set (4 or 8 bytes).
func (a *Asm) Bsf(size int, dst, src Reg) {
	a.instR(form{size: a.noByte(size), op: 0xfbc, reg: byte(dst)}, src)
}

// ImulRRI is dst = src * imm (2, 4 or 8 bytes).
func (a *Asm) ImulRRI(size int, dst, src Reg, imm int32) {
	f := form{size: a.noByte(size), op: 0x69, reg: byte(dst)}
	if imm == int32(int8(imm)) {
		f.op, f.imm = 0x6b, []byte{byte(imm)}
	} else {
		f.imm = a.immBytes(size, imm)
	}
	a.instR(f, src)
}

// noByte refuses byte operands where the instruction has none.
func (a *Asm) noByte(size int) int {
	if size == 1 {
		a.fail("instruction has no byte form")
	}
	return size
}

// Lock appends the lock prefix for the instruction that follows, which must write
// memory: a.Lock().IncM(8, m).
func (a *Asm) Lock() *Asm {
	a.Raw(0xf0)
	return a
}

// Cmpxchg compares rax with m; equal: m = src and ZF is set, else rax = m.
func (a *Asm) Cmpxchg(size int, m Mem, src Reg) { a.rm(size, 0xfb1, src, m) }

// Xadd exchanges m and r and stores the sum in m.
func (a *Asm) Xadd(size int, m Mem, r Reg) { a.rm(size, 0xfc1, r, m) }

// XchgMR exchanges m and r, locked always (SDM vol. 3A section 9.1.2.1).
func (a *Asm) XchgMR(size int, m Mem, r Reg) { a.rm(size, 0x87, r, m) }

// XchgRR exchanges two registers.
func (a *Asm) XchgRR(size int, r, s Reg) { a.rr(size, 0x87, s, r) }

// Setcc sets the low byte of r to 1 or 0.
func (a *Asm) Setcc(c Cond, r Reg) {
	a.instR(form{size: 1, op: 0xf90 | uint32(c), lowRM: true}, r)
}

// CmovRR copies src to dst if c holds (2, 4 or 8 bytes).
func (a *Asm) CmovRR(c Cond, size int, dst, src Reg) {
	a.instR(form{size: a.noByte(size), op: 0xf40 | uint32(c), reg: byte(dst)}, src)
}
