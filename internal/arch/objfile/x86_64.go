package objfile

import (
	"bytes"
	"encoding/binary"
)

// x8664 is x86-64 (System V ABI, AMD64 supplement).
var x8664 = Machine{
	ELF:       X86_64,
	Name:      "x86-64",
	Binds:     []uint32{7, 6}, // R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT
	IRelative: 37,             // R_X86_64_IRELATIVE
	Relative:  8,              // R_X86_64_RELATIVE
	StubSlot:  x8664Slot,
	Padding:   0xcc, // int3
	Calls:     x8664Calls,
	CallLen:   x8664Call,
	FrameSP:   7,
	// the return address is column 16, behind the registers
	FrameReturn: 16,
	Pushes:      8,

	FramePointer: 6,
	SignalCFA:    "\x77\xa0\x01\x06", // DW_OP_breg7 160, DW_OP_deref: rsp in struct ucontext (asm/sigcontext.h)

	Unwinders: []string{"_ULx86_64_step", "_Ux86_64_step"},
	Register:  x8664Register,
}

// x8664Register knows DWARF's numbers (psABI 3.6.2): ax dx cx bx si di bp sp, r8 to r15, the return address, xmm0 to xmm15.
func x8664Register(n int) (reg uint8, vector, ok bool) {
	numbers := [...]uint8{0, 2, 1, 3, 6, 7, 5, 4}
	switch {
	case n < 0:
		return 0, false, false
	case n < len(numbers):
		return numbers[n], false, true
	case n < 16:
		return uint8(n), false, true
	case n >= 17 && n < 33:
		return uint8(n - 17), true, true
	}
	return 0, false, false
}

// x8664Slot knows stubs as binutils and LLVM make them: `jmp *disp(%rip)`, with endbr64 and bnd before it at will.
func x8664Slot(b []byte, addr uint64) (uint64, bool) {
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

const x8664Call = 5 // call rel32

func x8664Calls(b []byte, addr uint64, f func(behind, to uint64)) {
	for i := 0; i+x8664Call <= len(b); i++ {
		next := bytes.IndexByte(b[i:len(b)-x8664Call+1], 0xe8)
		if next < 0 {
			return
		}
		i += next
		behind := addr + uint64(i) + x8664Call
		f(behind, behind+uint64(int64(int32(binary.LittleEndian.Uint32(b[i+1:])))))
	}
}
