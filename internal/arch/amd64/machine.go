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
