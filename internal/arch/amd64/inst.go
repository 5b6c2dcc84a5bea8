package amd64

// Enc is the encoding family of an instruction.
type Enc uint8

// The encoding families (Intel SDM vol. 2A chapter 2, AMD APM vol. 3 section 1.8
// for XOP, Intel APX specification for REX2).
const (
	EncLegacy Enc = iota // legacy opcode maps, with or without REX
	EncVEX               // C4, C5
	EncEVEX              // 62
	EncXOP               // 8F with map >= 8
	EncREX2              // D5
)

// Prefixes are the legacy prefixes found before the opcode, as bits.
type Prefixes uint16

// The legacy prefixes (SDM vol. 2A section 2.1.1).
const (
	PrefixLock Prefixes = 1 << iota // F0
	PrefixRepne
	PrefixRep
	PrefixCS
	PrefixSS
	PrefixDS
	PrefixES
	PrefixFS
	PrefixGS
	PrefixOpSize   // 66
	PrefixAddrSize // 67
)

// Kind says what an instruction does to the flow of control.
type Kind uint8

// Kinds of instructions. Everything that only falls through is KindPlain.
const (
	KindPlain   Kind = iota
	KindJmp          // direct jmp, rel8 or rel32
	KindJcc          // conditional direct branch, jcc
	KindLoop         // loop, loopz, loopnz, jrcxz: rel8 only
	KindXbegin       // xbegin: falls through, or goes to its target on an abort
	KindCall         // direct call
	KindJmpInd       // jmp through a register or memory
	KindCallInd      // call through a register or memory
	KindRet          // near ret, with or without an immediate
	KindFar          // far jmp, call, ret, iret
	KindSyscall      // syscall, sysenter, sysexit, sysret
	KindInt          // int n, into
	KindInt3         // int3, int1
	KindUndef        // ud0, ud1, ud2
	KindHlt          // hlt
)

// Map is an opcode map.
type Map uint8

// Opcode maps. The numbers of VEX and EVEX are those of their mmmmm field; XOP's
// keep theirs, 8 to 10.
const (
	MapOne  Map = 0 // one-byte opcodes
	Map0F   Map = 1
	Map0F38 Map = 2
	Map0F3A Map = 3
	Map4    Map = 4 // EVEX (APX: promoted legacy)
	Map5    Map = 5 // EVEX (FP16)
	Map6    Map = 6 // EVEX (FP16)
	Map7    Map = 7
	MapXOP8 Map = 8
	MapXOP9 Map = 9
	MapXOPA Map = 10
	Map3DN  Map = 15 // 0F 0F: the opcode is the immediate
)

// Inst is a decoded instruction. Offsets count bytes from its first byte.
type Inst struct {
	Len    uint8 // 1 to 15 bytes
	Enc    Enc
	Map    Map
	Opcode byte

	Prefix Prefixes // legacy prefixes; for VEX, EVEX and XOP the pp field as PrefixOpSize, PrefixRep or PrefixRepne
	Kind   Kind
	Rex    byte  // REX, or the same four bits out of REX2, VEX, EVEX or XOP as 0x40|WRXB; 0 if there is none
	RexOff uint8 // where the REX byte stands; 0 and Rex == 0 if there is none (a REX byte may also stand at 0)

	OpOff    uint8 // the opcode byte (the last one of 0F xx, 0F 38 xx …)
	HasModRM bool
	ModRM    byte
	ModRMOff uint8
	HasSIB   bool
	SIB      byte
	DispOff  uint8 // displacement of a memory operand (also moffs)
	DispLen  uint8 // 0, 1, 2, 4 or 8
	ImmOff   uint8 // immediates, all of them (also a branch's displacement)
	ImmLen   uint8

	// The PC-relative field, if there is one: the disp32 of a RIP-relative
	// operand, or the displacement of a direct branch. It counts from the
	// end of the instruction.
	RelOff uint8
	RelLen uint8 // 0: none; 1 or 4 (2 with an operand-size prefix on CPUs where that holds: refused by the relocator)
	RIPMem bool  // the field belongs to a RIP-relative memory operand

	// Vvvv is the register in the vvvv field of VEX, EVEX or XOP, not
	// inverted, with EVEX.V' as bit 4; 0 elsewhere.
	Vvvv byte

	// Ext holds the fifth bits of register numbers, which REX2 and EVEX add,
	// as R4<<2 | X4<<1 | B4. Reg and RM leave them out: a general register
	// with such a bit is one of r16 to r31.
	Ext byte

	Rel int64 // value of the PC-relative field, sign-extended

	// Imm is the immediate (all ImmLen bytes, little-endian, sign-extended).
	Imm int64
}

// Target gives the address that the PC-relative field points to for an
// instruction at addr. ok is false if it has none.
func (in *Inst) Target(addr uint64) (target uint64, ok bool) {
	if in.RelLen == 0 {
		return 0, false
	}
	return addr + uint64(in.Len) + uint64(in.Rel), true
}

// Mod, Reg and RM take the ModRM byte apart, without the extension bits.
func (in *Inst) Mod() byte { return in.ModRM >> 6 }

// Reg is the reg field of ModRM, extended by REX.R (or what stands for it).
func (in *Inst) Reg() byte { return in.ModRM>>3&7 | in.Rex&4<<1 }

// RM is the rm field of ModRM, extended by REX.B; a register only if Mod is 3.
func (in *Inst) RM() byte { return in.ModRM&7 | in.Rex&1<<3 }

// HasMem says whether ModRM names a memory operand.
func (in *Inst) HasMem() bool { return in.HasModRM && in.Mod() != 3 }

// W says whether REX.W (or what stands for it) is set.
func (in *Inst) W() bool { return in.Rex&8 != 0 }

// endsFlow says whether control never goes on to the next instruction.
func endsFlow(in *Inst) bool {
	switch in.Kind {
	case KindJmp, KindJmpInd, KindRet, KindUndef, KindHlt:
		return true
	}
	return false
}
