package amd64

// FirstFSLoad finds the first load of a whole register from a fixed offset of the FS
// base in straight code, and gives the offset.
func FirstFSLoad(code []byte) (off int32, ok bool) {
	for len(code) > 0 {
		in, err := Decode(code)
		if err != nil {
			return 0, false
		}
		if in.Prefix&PrefixFS != 0 && in.Map == MapOne && in.Opcode == 0x8b && in.DispLen == 4 {
			return disp32(code[in.DispOff:]), true
		}
		code = code[in.Len:]
	}
	return 0, false
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
