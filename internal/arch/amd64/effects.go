package amd64

// Effects says which registers and memory an instruction may use. It is on the
// safe side: Reads, Writes, MemRead, MemWrite and MayFault may claim too much and
// Kills too little, never the other way. Of an instruction that is not known
// exactly everything is claimed and nothing killed.
//
// The effects are those of the instruction alone: a call reads rsp, whatever the
// callee does. Registers r16 to r31 have no member in a RegSet and are left out.
type Effects struct {
	Reads  RegSet // may influence another register, memory or control flow
	Writes RegSet // may change
	// Kills holds the members of Writes that are overwritten as a whole: what
	// they held before is gone (it may have been read first). Flags is a member
	// only if all six are written or undefined afterwards.
	Kills RegSet

	MemRead  bool // may read memory through an operand, or implicitly
	MemWrite bool // may write memory
	MayFault bool // may raise an exception, that of an unmasked floating-point error included
}

// unknown claims everything.
var unknown = Effects{Reads: AllRegs, Writes: AllRegs, MemRead: true, MemWrite: true, MayFault: true}

// Effects gives the effects of a decoded instruction.
func (in *Inst) Effects() Effects {
	if in.Kind == KindSyscall && in.Opcode == 0x05 {
		e := unknown
		e.Writes = Set(RAX, RCX, R11)
		return e
	}
	do := in.roles()
	if do&known == 0 {
		return unknown
	}
	r := resolver{in: in, do: do}
	if do&extra != 0 {
		r.implicit()
	}
	r.flags()
	r.memory()
	r.registers()
	if in.Prefix&PrefixOpSize != 0 && !in.W() && shortBranch(in.Kind) {
		r.MayFault = true // AMD's processors go to the low 64 KB
	}
	return r.Effects
}

// roles says what an instruction does with its operands.
type roles uint32

// The roles. e is ModRM.rm, g ModRM.reg, z the register in the low three bits of
// the opcode, a rax, v the register in the vvvv field: general registers all.
const (
	known     roles = 1 << iota // all effects are in the other bits
	eR                          // read, register or memory
	eW                          // written, register or memory
	xR                          // read if it is memory; a register does not count
	xW                          // written if it is memory; a register does not count
	gR                          // read
	gW                          // written
	zR                          // read
	zW                          // written
	aR                          // read
	aW                          // written
	vR                          // read
	vW                          // written
	fR                          // flags read
	fW                          // some flags written
	fK                          // all flags written or undefined
	narrow                      // 8-bit operands
	narrowE                     // e alone has 8 bits
	wide                        // written registers are overwritten as a whole, even under 66
	keeps                       // written registers may keep their old value
	mR                          // implicit read of memory
	mW                          // implicit write of memory
	stack                       // rsp read and written
	onlyAddr                    // the memory operand is an address, not looked at
	noAddr                      // not even the address matters
	vectorIdx                   // the index of the memory operand is a vector register
	faults                      // an exception without memory
	extra                       // more in implicit
	grouped                     // ModRM, the immediate or prefixes decide: see groupRoles
)

// selector is the index of the mandatory prefix in tables: F2 and F3 go before 66.
func (in *Inst) selector() int {
	switch {
	case in.Prefix&PrefixRepne != 0:
		return 3
	case in.Prefix&PrefixRep != 0:
		return 2
	case in.Prefix&PrefixOpSize != 0:
		return 1
	}
	return 0
}

// roles finds the roles; without known if the instruction is not.
func (in *Inst) roles() roles {
	const both = PrefixRep | PrefixRepne
	roleTables.need(makeRoles)
	var do roles
	switch {
	case in.Enc == EncLegacy && in.Map == MapOne:
		do = oneByteRoles[in.Opcode]
	case in.Prefix&both == both: // the later one counts, which Inst does not say
		return 0
	default:
		if t := encRoles[in.Enc][in.Map]; t != nil {
			do = t[in.selector()][in.Opcode]
		}
	}
	if do&grouped != 0 {
		return in.groupRoles(do &^ grouped)
	}
	return do
}

// resolver turns roles into effects.
type resolver struct {
	Effects
	in *Inst
	do roles
}

func (r *resolver) flags() {
	if r.do&fR != 0 {
		r.Reads |= Flags
	}
	if r.do&(fW|fK) != 0 {
		r.Writes |= Flags
	}
	if r.do&fK != 0 {
		r.Kills |= Flags
	}
}

// memory adds the memory operand with its address, the stack, and faults.
func (r *resolver) memory() {
	touch := r.do
	if !r.in.HasMem() || r.do&(onlyAddr|noAddr) != 0 {
		touch &^= eR | eW | xR | xW
	}
	if r.in.HasMem() && r.do&noAddr == 0 {
		r.Reads |= r.in.addressRegs(r.do&vectorIdx != 0)
	}
	if r.do&stack != 0 {
		r.Reads |= setSP
		r.Writes |= setSP
	}
	r.MemRead = touch&(eR|xR|mR) != 0
	r.MemWrite = touch&(eW|xW|mW) != 0
	r.MayFault = r.MemRead || r.MemWrite || r.do&faults != 0
}

// addressRegs gives base and index of the memory operand (SDM vol. 2A section
// 2.1.5). The fifth bits of Ext name registers beyond r15.
func (in *Inst) addressRegs(vectorIndex bool) RegSet {
	const b4, x4 = 1, 2
	base, index := in.RM(), byte(4)
	if in.HasSIB {
		base = in.SIB&7 | in.Rex&1<<3
		index = in.SIB>>3&7 | in.Rex&2<<2
	}
	var s RegSet
	if noBase := base&7 == 5 && in.Mod() == 0; !noBase && in.Ext&b4 == 0 {
		s |= 1 << base
	}
	if index != 4 && !vectorIndex && in.Ext&x4 == 0 {
		s |= 1 << index
	}
	return s
}

// registers adds the operands in registers.
func (r *resolver) registers() {
	in := r.in
	if in.HasModRM {
		if !in.HasMem() {
			r.operand(in.RM()|in.Ext&1<<4, eR, eW, r.do&(narrow|narrowE) != 0)
		}
		r.operand(in.Reg()|in.Ext&4<<2, gR, gW, r.do&narrow != 0)
	}
	r.operand(in.Opcode&7|in.Rex&1<<3, zR, zW, r.do&narrow != 0)
	r.operand(byte(RAX), aR, aW, r.do&narrow != 0)
	r.operand(in.Vvvv, vR, vW, false)
}

// operand adds register n in the roles read and write.
func (r *resolver) operand(n byte, read, write roles, isByte bool) {
	if r.do&(read|write) == 0 || n > 15 {
		return
	}
	if isByte && r.in.Rex == 0 && n&^3 == 4 {
		n -= 4 // ah, ch, dh, bh
	}
	if r.do&read != 0 {
		r.Reads |= 1 << n
	}
	if r.do&write == 0 {
		return
	}
	r.Writes |= 1 << n
	if !isByte && r.whole() {
		r.Kills |= 1 << n
	}
}

// whole says whether a write of an operand that is not a byte replaces all 64
// bits: 32-bit results are zero-extended (SDM vol. 1 section 3.4.1.1).
func (r *resolver) whole() bool {
	switch {
	case r.do&keeps != 0:
		return false
	case r.do&wide != 0 || r.in.Enc != EncLegacy || r.in.W():
		return true
	}
	return r.in.Prefix&PrefixOpSize == 0
}
