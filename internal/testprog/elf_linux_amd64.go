package testprog

import (
	"debug/elf"
	"encoding/binary"
)

// SmallELF is a program written by hand, for machines that there is no compiler for here: one
// segment with the whole file. On a 386 it sleeps until a signal ends it.
func SmallELF(class elf.Class, machine elf.Machine) []byte {
	const base = 0x8048000
	code := []byte{0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7} // mov $29 (pause), %eax; int $0x80; jmp
	id := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(class), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	var parts []any
	if class == elf.ELFCLASS32 {
		const size = 52 + 32
		parts = []any{
			elf.Header32{
				Ident: id, Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Entry: base + size,
				Phoff: 52, Ehsize: 52, Phentsize: 32, Phnum: 1,
			},
			elf.Prog32{
				Type: uint32(elf.PT_LOAD), Vaddr: base, Paddr: base, Filesz: size + uint32(len(code)),
				Memsz: size + uint32(len(code)), Flags: uint32(elf.PF_R | elf.PF_X), Align: 4096,
			},
		}
	} else {
		const size = 64 + 56
		parts = []any{
			elf.Header64{
				Ident: id, Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Entry: base + size,
				Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
			},
			elf.Prog64{
				Type: uint32(elf.PT_LOAD), Vaddr: base, Paddr: base, Filesz: size + uint64(len(code)),
				Memsz: size + uint64(len(code)), Flags: uint32(elf.PF_R | elf.PF_X), Align: 4096,
			},
		}
	}
	var b []byte
	for _, p := range parts {
		b, _ = binary.Append(b, binary.LittleEndian, p) // fields of fixed size: it can not fail
	}
	return append(b, code...)
}
