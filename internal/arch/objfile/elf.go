package objfile

import "strconv"

// ELF is a processor by its number in the header of an ELF file (e_machine, gABI).
type ELF uint16

// The processors whose files are read.
const (
	X86_64  ELF = 62
	AArch64 ELF = 183
)

// String gives the processor's name in elf.h, if it is one that Linux runs on, or its number.
func (e ELF) String() string {
	switch e {
	case X86_64:
		return "EM_X86_64"
	case AArch64:
		return "EM_AARCH64"
	case 3:
		return "EM_386"
	case 8:
		return "EM_MIPS"
	case 20:
		return "EM_PPC"
	case 21:
		return "EM_PPC64"
	case 22:
		return "EM_S390"
	case 40:
		return "EM_ARM"
	case 43:
		return "EM_SPARCV9"
	case 243:
		return "EM_RISCV"
	case 258:
		return "EM_LOONGARCH"
	}
	return "e_machine " + strconv.Itoa(int(e))
}
