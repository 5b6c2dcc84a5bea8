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

func disp32(b []byte) int32 {
	return int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
}
