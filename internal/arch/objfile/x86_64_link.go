package objfile

import "encoding/binary"

// x8664Reloc knows the relocations of objects that gcc and clang make (System V ABI, AMD64 supplement, 4.4).
func x8664Reloc(kind uint32) (r LinkReloc, ok bool) {
	switch kind {
	case 0:
		r = LinkReloc{Name: "R_X86_64_NONE"}
	case 1:
		r = LinkReloc{Name: "R_X86_64_64", Value: LinkAddress, Size: 8}
	case 2:
		r = LinkReloc{Name: "R_X86_64_PC32", Value: LinkRelative, Size: 4, Signed: true}
	case 4:
		r = LinkReloc{Name: "R_X86_64_PLT32", Value: LinkCall, Size: 4, Signed: true}
	case 9:
		r = LinkReloc{Name: "R_X86_64_GOTPCREL", Value: LinkSlot, Size: 4, Signed: true}
	case 10:
		r = LinkReloc{Name: "R_X86_64_32", Value: LinkAddress, Size: 4}
	case 11:
		r = LinkReloc{Name: "R_X86_64_32S", Value: LinkAddress, Size: 4, Signed: true}
	case 24:
		r = LinkReloc{Name: "R_X86_64_PC64", Value: LinkRelative, Size: 8, Signed: true}
	case 41:
		r = LinkReloc{Name: "R_X86_64_GOTPCRELX", Value: LinkSlot, Size: 4, Signed: true}
	case 42:
		r = LinkReloc{Name: "R_X86_64_REX_GOTPCRELX", Value: LinkSlot, Size: 4, Signed: true}
	default:
		return r, false
	}
	return r, true
}

// x8664Veneer is jmp *0(%rip), with the address behind it.
func x8664Veneer(to uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{0xff, 0x25, 0, 0, 0, 0}, to)
}
