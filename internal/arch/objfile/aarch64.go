package objfile

import "debug/elf"

// aarch64 is arm64 (ELF for the Arm 64-bit Architecture), as far as Go programs ask for it.
var aarch64 = Machine{
	ELF:      elf.EM_AARCH64,
	Name:     "arm64",
	Relative: uint32(elf.R_AARCH64_RELATIVE),
}
