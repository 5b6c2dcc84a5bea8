package amd64

// groupRoles settles the roles of opcodes that ModRM.reg, the immediate or a
// prefix splits; do is what all of them have in common.
func (in *Inst) groupRoles(do roles) roles {
	switch {
	case in.Map == MapOne:
		return in.groupOne(do)
	case in.Map == Map0F && in.Enc == EncLegacy:
		return in.group0FRoles(do)
	}
	return in.groupVEX(do)
}

func (in *Inst) groupOne(do roles) roles {
	reg := in.ModRM >> 3 & 7
	switch op := in.Opcode; {
	case op < 0x40:
		return in.sameRegister(do)
	case op <= 0x83:
		return do | group1[reg]
	case op == 0x90:
		return in.exchange90(do)
	case op < 0xb0:
		return in.repeated(do)
	case op == 0xc6 || op == 0xc7:
		if in.Mod() == 3 && reg == 7 { // xabort, xbegin
			return 0
		}
		return do
	case op < 0xd4:
		return in.shift(do, reg)
	case op <= 0xdf:
		return in.x87(reg)
	case op <= 0xf7:
		return do | group3[reg]
	}
	return in.group5(do, reg)
}

// group1: add, or, adc, sbb, and, sub, xor, cmp with an immediate.
var group1 = [8]roles{eW | fK, eW | fK, eW | fR | fK, eW | fR | fK, eW | fK, eW | fK, eW | fK, fK}

// group3: test, test, not, neg, mul, imul, div, idiv. Multiplications leave four
// flags undefined by the manuals and as they were on some processors.
var group3 = [8]roles{fK, fK, eW, eW | fK, extra | fW, extra | fW, extra | fW | faults, extra | fW | faults}

// sameRegister drops the reads of xor, sub and sbb of a register with itself,
// whose result hangs on no register.
func (in *Inst) sameRegister(do roles) roles {
	same := in.Mod() == 3 && in.Reg() == in.RM()
	switch in.Opcode & 0x38 {
	case 0x18, 0x28, 0x30:
		if same {
			return do &^ (eR | gR)
		}
	}
	return do
}

// exchange90 tells nop and pause from xchg with r8.
func (in *Inst) exchange90(do roles) roles {
	if in.Rex&1 == 0 {
		return do
	}
	return do | zR | zW | aR | aW
}

// repeated weakens what a string instruction does: with rep it may do nothing.
func (in *Inst) repeated(do roles) roles {
	if in.Prefix&(PrefixRep|PrefixRepne) == 0 {
		return do
	}
	if do&fK != 0 {
		do = do&^fK | fW
	}
	return do | keeps
}

// shift: group 2. Rotates leave four flags, a count of 0 all six.
func (in *Inst) shift(do roles, reg byte) roles {
	do |= eW
	if reg == 2 || reg == 3 { // rcl, rcr
		do |= fR
	}
	switch {
	case in.Opcode >= 0xd2:
		return do | fW | extra
	case reg < 4:
		return do | fW
	case in.Opcode >= 0xd0 || in.shiftCount() != 0:
		return do | fK
	}
	return do | fW
}

// shiftCount is the immediate as the processor masks it: by the operand's size, whatever REX.W
// says of a byte.
func (in *Inst) shiftCount() int64 {
	if in.W() && (in.Map != MapOne || in.Opcode != 0xc0) {
		return in.Imm & 0x3f
	}
	return in.Imm & 0x1f
}

// group5: inc, dec, call, far call, jmp, far jmp, push; group 4 has the first two.
func (in *Inst) group5(do roles, reg byte) roles {
	switch reg {
	case 0, 1:
		return do | eW | fW
	case 2, 6:
		return do | stack | mW
	case 4:
		return do
	}
	return 0
}

// x87Reads and x87Writes have a bit for each ModRM.reg of D8 to DF that reads or
// writes its memory operand (SDM vol. 2D tables ).
var (
	x87Reads  = [8]byte{0xff, 0x31, 0xff, 0x21, 0xff, 0x11, 0xff, 0x31}
	x87Writes = [8]byte{0x00, 0xcc, 0x00, 0x8e, 0x00, 0xce, 0x00, 0xce}
)

func (in *Inst) x87(reg byte) roles {
	op := in.Opcode & 7
	do := known | faults
	if in.HasMem() {
		if x87Reads[op]>>reg&1 != 0 {
			do |= xR
		}
		if x87Writes[op]>>reg&1 != 0 {
			do |= xW
		}
		return do
	}
	switch {
	case in.Opcode == 0xdf && in.ModRM == 0xe0: // fnstsw ax
		return do | extra
	case op == 2 && reg < 4 || op == 3 && reg < 4: // fcmovcc
		return do | fR
	case (op == 3 || op == 7) && (reg == 5 || reg == 6): // fcomi, fucomi
		return do | fW
	}
	return do
}

func (in *Inst) group0FRoles(do roles) roles {
	reg := in.ModRM >> 3 & 7
	switch in.Opcode {
	case 0x00:
		return do | group6[reg]
	case 0x01:
		return in.group7(do, reg)
	case 0x1e:
		if in.Mod() == 3 && reg == 1 { // rdssp; a nop without shadow stacks
			return do | eW | keeps
		}
		return do | noAddr
	case 0xa4, 0xac: // shld, shrd
		if in.shiftCount() == 0 {
			return do | fW
		}
		return do | fK
	case 0xae:
		return in.group15(do, reg)
	case 0xba:
		return do | group8[reg]
	case 0xc7:
		return in.group9(do, reg)
	}
	return 0
}

// group6: sldt, str, lldt, ltr, verr, verw.
var group6 = [8]roles{eW | keeps, eW | keeps, eR, eR, eR | fW, eR | fW, eR | fW, eR | fW}

// group8: bt, bts, btr, btc with an immediate.
var group8 = [8]roles{5: eW, 6: eW, 7: eW}

// group7Mem: sgdt, sidt, lgdt, lidt, smsw, rstorssp, lmsw, invlpg.
var group7Mem = [8]roles{xW, xW, xR, xR, xW, xR | xW | fW, xR, onlyAddr}

func (in *Inst) group7(do roles, reg byte) roles {
	switch {
	case in.Mod() != 3:
		return do | group7Mem[reg]
	case in.ModRM == 0xd0 || in.ModRM == 0xf9: // xgetbv, rdtscp
		return do | extra
	case in.ModRM == 0xd6: // xtest
		return do | fW
	}
	return 0
}

// group15Mem: fxsave, fxrstor, ldmxcsr, stmxcsr, xsave, xrstor, xsaveopt, clflush.
var group15Mem = [8]roles{xW, xR, xR, xW, xR | xW | extra, xR | extra, xR | xW | extra, xR}

// group15Reg, with F3: rdfsbase, rdgsbase, wrfsbase, wrgsbase.
var group15Reg = [8]roles{eW, eW, eR, eR}

func (in *Inst) group15(do roles, reg byte) roles {
	switch p := in.selector(); {
	case in.Mod() != 3 && p == 0:
		return do | group15Mem[reg]
	case in.Mod() != 3 && p == 1 && reg >= 6: // clwb, clflushopt
		return do | xR
	case in.Mod() == 3 && p == 0 && reg >= 5: // fences
		return do
	case in.Mod() == 3 && p == 2 && reg < 4:
		return do | group15Reg[reg]
	}
	return 0
}

func (in *Inst) group9(do roles, reg byte) roles {
	switch {
	case in.Mod() != 3 && reg == 1: // cmpxchg8b, cmpxchg16b
		return do | eR | eW | fW | extra
	case in.Mod() != 3 && (reg >= 3 && reg <= 5): // xrstors, xsavec, xsaves
		return do | xR | xW | extra
	case in.Mod() == 3 && reg >= 6 && in.selector() < 2: // rdrand, rdseed
		return do | eW | fK
	case in.Mod() == 3 && reg == 7 && in.selector() == 2: // rdpid
		return do | eW | wide
	}
	return 0
}

// groupVEX: blsr, blsmsk, blsi; vldmxcsr, vstmxcsr; cmpccxadd; gathers.
func (in *Inst) groupVEX(do roles) roles {
	reg := in.ModRM >> 3 & 7
	switch {
	case in.Map == Map0F38 && in.Opcode == 0xf3 && reg >= 1 && reg <= 3:
		return do | eR | vW | fK
	case in.Map == Map0F38 && in.Opcode >= 0xe0 && in.Opcode <= 0xef && in.HasMem():
		return do | eR | eW | gR | gW | vR | fK
	case in.Map == Map0F && in.Opcode == 0xae && in.HasMem() && reg == 2:
		return do | xR
	case in.Map == Map0F && in.Opcode == 0xae && in.HasMem() && reg == 3:
		return do | xW
	}
	return 0
}
