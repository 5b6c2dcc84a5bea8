package amd64

// StackUse is what the variables of a function take of its stack, as its instructions tell.
type StackUse struct {
	Bytes  int64 // at most; what is pushed, and what other functions take that it calls, is not counted
	Varies bool  // how much it is shows when it runs: alloca, an array of a variable length; or so much that it is taken in a loop
	At     int   // the instruction that takes the most, or does so: bytes behind the function's first
}

// stackPiece is what is taken at a time of a large frame, each piece being touched before the next (-fstack-clash-protection).
const stackPiece = 4096

// StackOf says what the code of one function takes of its stack. Where it ends, or can not be decoded, what is behind is not looked at.
func StackOf(code []byte) (u StackUse) {
	var pieces, small int64 // the pieces, and the largest of what else is taken
	loops := -1             // where the stack pointer is compared with how far it is to go
	for off := 0; off < len(code); {
		in, err := Decode(code[off:])
		if err != nil {
			break
		}
		size, varies := in.stackTaken(code[off:])
		switch {
		case varies:
			return StackUse{Varies: true, At: off}
		case size >= stackPiece:
			pieces += size
			u.At = off
		case size > small:
			small = size
			if pieces == 0 {
				u.At = off
			}
		}
		if in.comparesRSP() {
			loops = off
		}
		off += int(in.Len)
	}
	if loops >= 0 && pieces > 0 {
		return StackUse{Varies: true, At: loops}
	}
	u.Bytes = pieces + small
	return u
}

// Opcodes of the one-byte map: To has ModRM.rm first, From ModRM.reg.
const (
	opSubTo    = 0x29
	opSubFrom  = 0x2b
	opCmpTo    = 0x39
	opCmpFrom  = 0x3b
	opGroup1   = 0x81 // with 32 bits of an immediate
	opGroup1Ib = 0x83 // with 8
	opMovTo    = 0x89
	opMovFrom  = 0x8b
	opLea      = 0x8d

	group1Add = 0
	group1Sub = 5
)

// stackTaken says by how much an instruction lowers the stack pointer, or that it makes it what another register says, which is not that of the frame.
func (in *Inst) stackTaken(code []byte) (size int64, varies bool) {
	if in.Enc != EncLegacy || in.Map != MapOne || !in.HasModRM || !in.W() {
		return 0, false
	}
	toRSP, fromRSP := in.Mod() == 3 && in.RM() == byte(RSP), in.Reg() == byte(RSP)
	switch in.Opcode {
	case opGroup1, opGroup1Ib:
		switch {
		case !toRSP:
		case in.ModRM>>3&7 == group1Sub:
			return in.Imm, false
		case in.ModRM>>3&7 == group1Add:
			return -in.Imm, false
		}
	case opSubTo:
		return 0, toRSP
	case opSubFrom:
		return 0, fromRSP
	case opMovTo:
		return 0, toRSP && in.Reg() != byte(RBP) && in.Reg() != byte(RSP)
	case opMovFrom:
		return 0, fromRSP && in.Mod() == 3 && in.RM() != byte(RBP) && in.RM() != byte(RSP)
	case opLea:
		if fromRSP && in.HasMem() && in.baseIsRSP() && in.SIB>>3&7 == byte(RSP) && in.Rex&2 == 0 {
			return -in.disp(code), false
		}
	}
	return 0, false
}

// comparesRSP says whether an instruction compares the stack pointer with a register.
func (in *Inst) comparesRSP() bool {
	if in.Enc != EncLegacy || in.Map != MapOne || in.Opcode != opCmpTo && in.Opcode != opCmpFrom || !in.W() || in.Mod() != 3 {
		return false
	}
	return in.Reg() == byte(RSP) || in.RM() == byte(RSP)
}
