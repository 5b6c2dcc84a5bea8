package amd64

import (
	"bytes"
	"encoding/binary"
)

// Breakpoint is int3, the instruction that kernel uprobes and debuggers write into a program. It also fills what is
// between pieces of generated code.
const Breakpoint = 0xcc

// Reach is how far a 32-bit displacement leads, less a page for the length of an instruction and for operands near
// its ends.
const Reach = 1<<31 - 1<<12

// LandingLen is the size of a landing instruction, endbr64.
const LandingLen = 4

// Features of the CPU for arch.CodegenEnv.Features.
const (
	FeatureRDPID    = 1 << iota // rdpid
	FeatureFSGSBase             // programs may read the FS base (rdfsbase)
)

// nop5 is the instruction at which the kernel makes its breakpoint a call, after the first hit (Linux 6.18).
var nop5 = []byte{0x0f, 0x1f, 0x44, 0, 0}

// KernelPatch says how many bytes a uprobe of the kernel may have changed where have stands in place of want; 0: it is
// not the kernel's doing. called says whether a distance from the end of a call leads to the kernel's trampoline.
func KernelPatch(have, want []byte, called func(behind int, rel int32) bool) int {
	switch {
	case have[0] == Breakpoint:
		return 1
	case have[0] == 0xe8 && bytes.HasPrefix(want, nop5) && called(len(nop5), int32(binary.LittleEndian.Uint32(have[1:]))):
		return len(nop5)
	}
	return 0
}

// LongCall is the length of the longest call instruction, without prefixes.
const LongCall = 7

// EndsInCall says whether LongCall bytes end in a call (SDM vol. 2A, CALL: E8 with a target from lowest on,
// and FF /2), the next instruction being at pc.
func EndsInCall(b []byte, pc, lowest uint64) bool {
	if b[2] == 0xe8 && pc+uint64(int64(int32(binary.LittleEndian.Uint32(b[3:])))) >= lowest {
		return true
	}
	for n := 2; n <= LongCall; n++ {
		if i := LongCall - n; b[i] == 0xff && b[i+1]>>3&7 == 2 && modLen(b[i+1:]) == n-1 {
			return true
		}
	}
	return false
}

// modLen is the length of an operand: its ModRM byte and what belongs to it (SDM vol. 2A, table
// 2-2).
func modLen(b []byte) int {
	mod, rm := b[0]>>6, b[0]&7
	n := 1
	if mod == 3 {
		return n
	}
	base := rm
	if rm == 4 {
		if len(b) < 2 {
			return 0
		}
		n, base = 2, b[1]&7
	}
	switch {
	case mod == 1:
		n++
	case mod == 2, mod == 0 && base == 5:
		n += 4
	}
	return n
}
