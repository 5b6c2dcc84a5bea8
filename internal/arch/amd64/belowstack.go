package amd64

// BelowStack finds the first instruction of straight code that accesses memory below the stack pointer, in the red zone, by a displacement alone: what an index
// adds is not known. Precondition: the code can be decoded.
func BelowStack(code []byte) (at int, is bool) {
	const lea, noIndex = 0x8d, 4
	for off := 0; off < len(code); {
		in, err := Decode(code[off:])
		if err != nil {
			return off, false
		}
		index := in.SIB>>3&7 != noIndex || in.Rex&2 != 0 || in.Ext&2 != 0
		if in.HasModRM && in.baseIsRSP() && !index && in.disp(code[off:]) < 0 && (in.Map != MapOne || in.Opcode != lea) {
			return off, true
		}
		off += int(in.Len)
	}
	return 0, false
}
