package amd64

// wide says whether an instruction of the function uses vector state beyond the low 128
// bits of XMM0 to XMM15: a wider register, one of the further ones, a mask, x87 or MMX.
// Bytes that are reached and hold no instruction count as one.
func (fl *Flow) wide() bool {
	if len(fl.bad) > 0 {
		return true
	}
	for i := range fl.nodes {
		if fl.nodes[i].in.wide() {
			return true
		}
	}
	return false
}

// wide says it of one instruction.
func (in *Inst) wide() bool {
	if in.Enc != EncLegacy {
		return in.Enc != EncREX2 || in.Map != MapOne && in.wideLegacy()
	}
	return in.wideLegacy()
}

func (in *Inst) wideLegacy() bool {
	switch in.Map {
	case MapOne:
		return in.Opcode == 0x9b || in.Opcode >= 0xd8 && in.Opcode <= 0xdf // fwait, x87
	case Map0F:
		return in.wide0F()
	case Map0F38: // pshufb to pmulhrsw, pabsb to pabsd
		return in.Prefix&PrefixOpSize == 0 && (in.Opcode <= 0x0b || in.Opcode >= 0x1c && in.Opcode <= 0x1e)
	case Map0F3A: // palignr
		return in.Prefix&PrefixOpSize == 0 && in.Opcode == 0x0f
	}
	return true
}

// wide0F finds the instructions of MMX (SDM vol. 2D, table A-3: those whose operands are
// P or Q) and those that save or load extended state.
func (in *Inst) wide0F() bool {
	op, ext := in.Opcode, in.ModRM>>3&7
	plain := in.Prefix&(PrefixOpSize|PrefixRep|PrefixRepne) == 0
	switch {
	case op == 0x01: // xgetbv, xsetbv and others of the system
		return in.Mod() == 3 && ext == 2
	case op == 0x0e, op == 0x0f: // femms, 3DNow!
		return true
	case op == 0x2a || op == 0x2c || op == 0x2d: // cvtpi2ps, cvtpi2pd and back
		return plain || in.Prefix&(PrefixRep|PrefixRepne) == 0
	case op == 0xae: // fxsave, fxrstor, xsave, xrstor, xsaveopt
		return in.Mod() != 3 && (ext < 2 || plain && ext >= 4 && ext <= 6)
	case op == 0xc7: // xrstors, xsavec, xsaves
		return in.Mod() != 3 && ext >= 3 && ext <= 5
	case !plain && (op == 0xd6 || op == 0xd7): // movq2dq, movdq2q; pmovmskb with a void prefix
		return in.Prefix&(PrefixRep|PrefixRepne) != 0
	}
	return plain && mmx0F(op)
}

// mmx0F says whether opcode 0F op without a prefix is one of MMX.
func mmx0F(op byte) bool {
	switch {
	case op == 0xc4, op == 0xc5: // pinsrw, pextrw
		return true
	case op >= 0x60 && op <= 0x77, op == 0x7e, op == 0x7f:
		return true
	}
	return op > 0xd0 && op != 0xd6 && op != 0xff
}

// StateUse is which of a thread's registers code uses.
type StateUse int

// What code uses, beside the general registers.
const (
	StateGeneral StateUse = iota // nothing
	StateVectors                 // the low 128 bits of XMM0 to XMM15
	StateWide                    // more of the vector registers, masks, x87 or MMX
)

// UseOf says which state code uses from its first to its last byte, and where it uses the most. The error is that of Decode: it is not all code.
func UseOf(code []byte) (most StateUse, at int, err error) {
	for off := 0; off < len(code); {
		in, err := Decode(code[off:])
		if err != nil {
			return most, off, err
		}
		if use := in.stateUse(); use > most {
			most, at = use, off
		}
		off += int(in.Len)
	}
	return most, at, nil
}

// UsesGS finds the first instruction that refers to memory by the GS base, where a kernel has a CPU's own data: bytes behind the code's first; -1: there is none. What
// can not be decoded ends the code.
func UsesGS(code []byte) int {
	for off := 0; off < len(code); {
		in, err := Decode(code[off:])
		if err != nil {
			break
		}
		if in.Prefix&PrefixGS != 0 && in.HasMem() {
			return off
		}
		off += int(in.Len)
	}
	return -1
}

func (in *Inst) stateUse() StateUse {
	switch {
	case in.general():
		return StateGeneral
	case in.wide():
		return StateWide
	}
	return StateVectors
}

// general says whether an instruction uses general registers, memory and the system alone.
func (in *Inst) general() bool {
	if in.Enc != EncLegacy && in.Enc != EncREX2 {
		op := in.Opcode
		bits := op >= 0xf2 && op <= 0xf7 && op != 0xf4 // andn, blsr, bzhi, pdep, mulx, bextr, sarx
		return in.Enc == EncVEX && (in.Map == Map0F38 && bits || in.Map == Map0F3A && op == 0xf0)
	}
	switch in.Map {
	case MapOne:
		return !in.wideLegacy()
	case Map0F:
		return in.general0F()
	case Map0F38: // invept, invvpid, invpcid; crc32, movbe, wrss, adcx, movdir64b, movdiri; aadd
		op := in.Opcode
		return op >= 0x80 && op <= 0x82 || op >= 0xf0 && op != 0xf2 && op != 0xf3 && op <= 0xf9 || op == 0xfc
	}
	return false
}

func (in *Inst) general0F() bool {
	op, ext := in.Opcode, in.ModRM>>3&7
	switch {
	case op == 0xae && in.Mod() != 3: // ldmxcsr, stmxcsr, fxsave and its like; but clflush, clwb, clrssbsy, ptwrite
		return ext == 7 || ext == 6 && in.Prefix&(PrefixOpSize|PrefixRep) != 0 || ext == 4 && in.Prefix&PrefixRep != 0
	case op == 0xc7, op == 0x01:
		return !in.wide0F()
	case op == 0x0e, op == 0x0f:
		return false
	case op <= 0x0d, op >= 0x18 && op <= 0x27, op >= 0x30 && op <= 0x37, op >= 0x40 && op <= 0x4f:
		return true
	case op == 0x78, op == 0x79: // vmread, vmwrite; with a prefix extrq, insertq
		return in.Prefix&(PrefixOpSize|PrefixRep|PrefixRepne) == 0
	case op >= 0x80 && op <= 0xc1, op == 0xc3, op >= 0xc8 && op <= 0xcf, op == 0xff:
		return true
	}
	return false
}
