package amd64

// Push pushes all 8 bytes of r.
func (a *Asm) Push(r Reg) { a.regOp(4, 0x50, r) }

// Pop pops 8 bytes into r.
func (a *Asm) Pop(r Reg) { a.regOp(4, 0x58, r) }

// PushM pushes 8 bytes of memory.
func (a *Asm) PushM(m Mem) { a.extM(4, 0xff, 6, m) }

// PopM pops 8 bytes into memory. An operand based on rsp counts from rsp after the pop.
func (a *Asm) PopM(m Mem) { a.extM(4, 0x8f, 0, m) }

// PushI pushes imm, sign-extended to 8 bytes.
func (a *Asm) PushI(imm int32) {
	if imm == int32(int8(imm)) {
		a.Raw(0x6a, byte(imm))
		return
	}
	a.Raw(0x68)
	a.Data32(uint32(imm))
}

// PushAddr pushes a 64-bit constant and touches neither registers nor flags. Until its
// second instruction, where there is one, has run, the upper half is not yet right.
func (a *Asm) PushAddr(v uint64) {
	if int64(v) == int64(int32(v)) {
		a.PushI(int32(v))
		return
	}
	a.Raw(0x68)
	a.Data32(uint32(v))
	a.MovMI(4, At(RSP, 4), int32(v>>32))
}

// Pushfq pushes the flags.
func (a *Asm) Pushfq() { a.Raw(0x9c) }

// Popfq pops the flags.
func (a *Asm) Popfq() { a.Raw(0x9d) }

// Lahf copies SF ZF AF PF CF to ah.
func (a *Asm) Lahf() { a.Raw(0x9f) }

// Sahf copies ah to SF ZF AF PF CF.
func (a *Asm) Sahf() { a.Raw(0x9e) }

// Cld clears the direction flag.
func (a *Asm) Cld() { a.Raw(0xfc) }

// Jmp goes to l, in the 5-byte form.
func (a *Asm) Jmp(l Label) {
	a.Raw(0xe9)
	a.putLabel32(l, 0)
}

// JmpShort goes to l, within 127 bytes, in the 2-byte form.
func (a *Asm) JmpShort(l Label) { a.short(0xeb, l) }

// JmpAddr goes to addr, within 2 GB, in the 5-byte form.
func (a *Asm) JmpAddr(addr uint64) {
	a.Raw(0xe9)
	a.putRel32(addr)
}

// JmpFar goes to any addr by way of an 8-byte literal that follows: 14 bytes.
func (a *Asm) JmpFar(addr uint64) {
	a.Raw(0xff, 0x25, 0, 0, 0, 0)
	a.Data64(addr)
}

// Jcc goes to l if c holds, in the 6-byte form.
func (a *Asm) Jcc(c Cond, l Label) {
	a.Raw(0x0f, 0x80|byte(c))
	a.putLabel32(l, 0)
}

// JccShort goes to l, within 127 bytes, if c holds, in the 2-byte form.
func (a *Asm) JccShort(c Cond, l Label) { a.short(0x70|byte(c), l) }

// JccAddr goes to addr, within 2 GB, if c holds, in the 6-byte form.
func (a *Asm) JccAddr(c Cond, addr uint64) {
	a.Raw(0x0f, 0x80|byte(c))
	a.putRel32(addr)
}

func (a *Asm) short(op byte, l Label) {
	a.Raw(op, 0)
	a.use(l, fixup{fixRel8, len(a.buf) - 1, len(a.buf)})
}

// Jrcxz goes to l, within 127 bytes, if rcx is 0. It reads no flags.
func (a *Asm) Jrcxz(l Label) { a.short(0xe3, l) }

// JmpR goes to the address in r.
func (a *Asm) JmpR(r Reg) { a.extR(4, 0xff, 4, r) }

// JmpM goes to the address in memory.
func (a *Asm) JmpM(m Mem) { a.extM(4, 0xff, 4, m) }

// Call calls l.
func (a *Asm) Call(l Label) {
	a.Raw(0xe8)
	a.putLabel32(l, 0)
}

// CallAddr calls addr, within 2 GB.
func (a *Asm) CallAddr(addr uint64) {
	a.Raw(0xe8)
	a.putRel32(addr)
}

// CallR calls the address in r.
func (a *Asm) CallR(r Reg) { a.extR(4, 0xff, 2, r) }

// CallM calls the address in memory.
func (a *Asm) CallM(m Mem) { a.extM(4, 0xff, 2, m) }

// Ret returns.
func (a *Asm) Ret() { a.Raw(0xc3) }

// Int3 is the one-byte breakpoint.
func (a *Asm) Int3() { a.Raw(0xcc) }

// Ud2 raises an invalid-opcode exception.
func (a *Asm) Ud2() { a.Raw(0x0f, 0x0b) }

// Syscall enters the kernel; it overwrites rcx and r11.
func (a *Asm) Syscall() { a.Raw(0x0f, 0x05) }

// Rdtsc reads the time stamp counter into edx:eax.
func (a *Asm) Rdtsc() { a.Raw(0x0f, 0x31) }

// Rdtscp reads the time stamp counter into edx:eax and IA32_TSC_AUX, which Linux sets to
// node<<12 | cpu, into ecx.
func (a *Asm) Rdtscp() { a.Raw(0x0f, 0x01, 0xf9) }

// Rdpid reads IA32_TSC_AUX into r. Not every x86-64 processor has it (CPUID.7.0:ECX[22]).
func (a *Asm) Rdpid(r Reg) { a.instR(form{size: 4, pre: 0xf3, op: 0xfc7, reg: 7}, r) }

// Pause tells the processor that it is in a spin loop.
func (a *Asm) Pause() { a.Raw(0xf3, 0x90) }

// Lfence waits until every earlier instruction is done.
func (a *Asm) Lfence() { a.Raw(0x0f, 0xae, 0xe8) }

// Mfence orders every earlier load and store before every later one.
func (a *Asm) Mfence() { a.Raw(0x0f, 0xae, 0xf0) }
