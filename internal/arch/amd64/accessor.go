package amd64

// Watchpoints is how many watchpoints a processor has at a time: its registers for the addresses of breakpoints
// (SDM vol. 3B section 18.2.1).
const Watchpoints = 4

// Accessor finds the instruction that has accessed memory, when a data breakpoint tells of it: the trap comes behind the
// instruction, and reports the one that would run next (SDM vol. 3B section 18.3.1.2). code is that of the function at addr
// which next lies in. reads says that the breakpoint waits for reads too, and not only for writes. ok is false where the
// instruction is not known: the thread may have come to next by a branch that itself accesses memory, or the code can not
// be followed.
func Accessor(code []byte, addr, next uint64, reads bool) (at uint64, ok bool) {
	prev, in, ok := instBefore(code, next-addr)
	if !ok || reads && jumpsByMemory(code) {
		return 0, false
	}
	e := in.Effects()
	accesses := in.Kind == KindPlain && (e.MemWrite || reads && e.MemRead)
	if in, err := Decode(code[next-addr:]); err == nil && repeats(&in) {
		if accesses { // the trap comes behind each repetition, with the instruction to be run next
			return 0, false
		}
		return next, true
	}
	return addr + prev, accesses
}

// instBefore finds the instruction of straight code that ends at an offset.
func instBefore(code []byte, end uint64) (at uint64, in Inst, ok bool) {
	if end >= uint64(len(code)) {
		return 0, in, false
	}
	for off := uint64(0); off < end; off += uint64(in.Len) {
		var err error
		if in, err = Decode(code[off:]); err != nil {
			return 0, in, false
		}
		if off+uint64(in.Len) == end {
			return off, in, true
		}
	}
	return 0, in, false
}

// jumpsByMemory says whether code may hold a jump to an address that it reads from memory: behind such a jump the
// instruction that runs next may be any.
func jumpsByMemory(code []byte) bool {
	for len(code) > 0 {
		in, err := Decode(code)
		if err != nil || in.Kind == KindJmpInd && in.HasMem() {
			return true
		}
		code = code[in.Len:]
	}
	return false
}

// repeats says whether an instruction accesses memory again and again (SDM vol. 2B, REP/REPE/REPZ/REPNE/REPNZ).
func repeats(in *Inst) bool {
	if in.Prefix&(PrefixRep|PrefixRepne) == 0 || in.Enc != EncLegacy && in.Enc != EncREX2 || in.Map != MapOne {
		return false
	}
	switch in.Opcode &^ 1 {
	case 0x6c, 0x6e, 0xa4, 0xa6, 0xaa, 0xac, 0xae:
		return true
	}
	return false
}
