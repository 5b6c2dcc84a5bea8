package ptrace

import (
	"sync"

	"golang.org/x/sys/unix"
)

// cpuid runs the instruction (SDM 2A, CPUID).
func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)

// xstateSize asks the processor how large the xsave area is, with and without tile data
// (SDM 1 13.2, leaf 0DH: sub-leaf 0 EBX and EAX/EDX; sub-leaf n EAX size, EBX offset).
var xstateSize = sync.OnceValue(func() xstateSizes {
	lo, most, _, hi := cpuid(0xd, 0)
	sizes := xstateSizes{Default: xsaveMin, Max: uint64(most)}
	for n := uint32(2); n < 63; n++ {
		if mask := uint64(hi)<<32 | uint64(lo); mask>>n&1 == 0 || 1<<n == featureTile {
			continue
		}
		size, offset, _, _ := cpuid(0xd, n)
		sizes.Default = max(sizes.Default, uint64(offset)+uint64(size))
	}
	return sizes
})

const (
	ntPRFPReg   = 2     // NT_PRFPREG: what fxsave stores
	ntX86Xstate = 0x202 // NT_X86_XSTATE
)

// getXstate reads the vector registers in the layout of the xsave instruction's standard form, or, of
// a processor without it, in that of fxsave: fxSize bytes. It has room for all of AMX and more.
func getXstate(tid int) ([]byte, error) {
	b := make([]byte, 16<<10)
	n, err := regset(unix.PTRACE_GETREGSET, tid, ntX86Xstate, b)
	if err == unix.ENODEV {
		n, err = regset(unix.PTRACE_GETREGSET, tid, ntPRFPReg, b)
	}
	return b[:n], err
}

// setXstate writes what getXstate has read.
func setXstate(tid int, b []byte) error {
	note := uintptr(ntX86Xstate)
	if len(b) == fxSize {
		note = ntPRFPReg
	}
	_, err := regset(unix.PTRACE_SETREGSET, tid, note, b)
	return err
}
