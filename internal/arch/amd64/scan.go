package amd64

// FirstFSLoad finds the first load of a whole register from a fixed offset of the FS
// base in straight code, and gives the offset. It may stand in the instruction, or, as
// in position-independent programs, in a register that was set to a constant before.
func FirstFSLoad(code []byte) (off int32, ok bool) {
	var known [16]*int64
	for len(code) > 0 {
		in, err := Decode(code)
		if err != nil {
			return 0, false
		}
		if in.Prefix&PrefixFS != 0 && in.Map == MapOne && in.Opcode == 0x8b {
			if fixedAddress(&in) {
				return disp32(code[in.DispOff:]), true
			}
			if in.Mod() != 0 || in.HasSIB || in.RIPMem || known[in.RM()] == nil {
				return 0, false
			}
			return int32(*known[in.RM()]), true
		}
		writes := in.Effects().Writes
		for r := range known {
			if writes.Has(Reg(r)) {
				known[r] = nil
			}
		}
		if in.Map == MapOne && in.Opcode == 0xc7 && in.Mod() == 3 && in.W() { // mov $imm32, %r64
			known[in.RM()] = &in.Imm
		}
		code = code[in.Len:]
	}
	return 0, false
}

// fixedAddress says whether the memory operand is a displacement alone (SDM vol. 2A,
// table 2-3: no base, no index).
func fixedAddress(in *Inst) bool {
	return in.HasSIB && in.Mod() == 0 && in.SIB&7 == 5 && in.SIB>>3&7 == 4 && in.Rex&2 == 0 && in.DispLen == 4
}

// RIPLoads lists the addresses of the RIP-relative operands of straight code at addr, in
// order.
func RIPLoads(code []byte, addr uint64) []uint64 {
	var out []uint64
	for len(code) > 0 {
		in, err := Decode(code)
		if err != nil {
			return out
		}
		if t, ok := in.Target(addr); ok && in.RIPMem {
			out = append(out, t)
		}
		code = code[in.Len:]
		addr += uint64(in.Len)
	}
	return out
}

// JumpsInto says whether code at addr may jump directly to an address from lo up to hi: by a
// jump with a displacement of 4 bytes, as between sections. Bytes are taken for jumps where
// they are none, too.
func JumpsInto(code []byte, addr, lo, hi uint64) bool {
	for i := range code {
		n := 1
		switch {
		case code[i] == 0xe9:
		case code[i] == 0x0f && i+1 < len(code) && code[i+1]&0xf0 == 0x80:
			n = 2
		default:
			continue
		}
		if i+n+4 > len(code) {
			continue
		}
		to := addr + uint64(i+n+4) + uint64(int64(disp32(code[i+n:])))
		if to-lo < hi-lo {
			return true
		}
	}
	return false
}

// SignalReturn is how glibc, musl and Go write the code that a signal handler returns to:
// mov $15, %rax; syscall. gdb's amd64-linux-tdep.c and libgcc's linux-unwind.h look for these bytes too.
const SignalReturn = "\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"

func disp32(b []byte) int32 {
	return int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
}
