// Package arm64obj describes the files of programs for arm64 (ELF for the Arm 64-bit Architecture), as far as Go
// programs ask for it.
package arm64obj

import (
	"debug/elf"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// Machine is arm64.
var Machine = objfile.Machine{
	ELF:      elf.EM_AARCH64,
	Name:     "arm64",
	Relative: uint32(elf.R_AARCH64_RELATIVE),
}
