// Package amd64obj describes the files of programs for x86-64 (System V ABI, AMD64 supplement).
package amd64obj

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// Machine is x86-64.
var Machine = objfile.Machine{
	ELF:       elf.EM_X86_64,
	Name:      "x86-64",
	Binds:     []uint32{uint32(elf.R_X86_64_JMP_SLOT), uint32(elf.R_X86_64_GLOB_DAT)},
	IRelative: uint32(elf.R_X86_64_IRELATIVE),
	Relative:  uint32(elf.R_X86_64_RELATIVE),
	StubSlot:  stubSlot,
	Padding:   0xcc, // int3
	Calls:     calls,
	CallLen:   callLen,
	FrameSP:   7,
	// the return address is column 16, behind the registers
	FrameReturn: 16,
	Pushes:      8,
	Unwinders:   []string{"_ULx86_64_step", "_Ux86_64_step"},
}

// stubSlot knows stubs as binutils and LLVM make them: `jmp *disp(%rip)`, with endbr64 and bnd before it at will.
func stubSlot(b []byte, addr uint64) (uint64, bool) {
	n := 0
	if bytes.HasPrefix(b, []byte{0xf3, 0x0f, 0x1e, 0xfa}) { // endbr64
		n = 4
	}
	if len(b) > n && b[n] == 0xf2 { // bnd
		n++
	}
	if len(b) < n+6 || b[n] != 0xff || b[n+1] != 0x25 { // jmp *disp32(%rip)
		return 0, false
	}
	disp := int32(binary.LittleEndian.Uint32(b[n+2:]))
	return addr + uint64(n+6) + uint64(int64(disp)), true
}

const callLen = 5 // call rel32

func calls(b []byte, addr uint64, f func(behind, to uint64)) {
	for i := 0; i+callLen <= len(b); i++ {
		next := bytes.IndexByte(b[i:len(b)-callLen+1], 0xe8)
		if next < 0 {
			return
		}
		i += next
		behind := addr + uint64(i) + callLen
		f(behind, behind+uint64(int64(int32(binary.LittleEndian.Uint32(b[i+1:])))))
	}
}
