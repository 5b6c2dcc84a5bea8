package ptrace

import "sync"

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
