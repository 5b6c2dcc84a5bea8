package amd64

// Reg is a general register by the number that instructions encode: 0 rax, 1 rcx,
// 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi, 7 rdi, 8 to 15 r8 to r15.
type Reg uint8

// The general registers.
const (
	RAX Reg = iota
	RCX
	RDX
	RBX
	RSP
	RBP
	RSI
	RDI
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
)

// RegSet is a set of general registers, and of the arithmetic flags as one member.
type RegSet uint32

// Flags stands for the six arithmetic flags (CF PF AF ZF SF OF) in a RegSet.
const Flags RegSet = 1 << 16

// AllRegs holds every general register and the flags.
const AllRegs RegSet = 1<<17 - 1

// Set makes a RegSet of registers.
func Set(rs ...Reg) RegSet {
	var s RegSet
	for _, r := range rs {
		s |= 1 << r
	}
	return s
}

// Has says whether r is in s.
func (s RegSet) Has(r Reg) bool { return s>>r&1 != 0 }
