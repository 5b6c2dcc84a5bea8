package amd64

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// regNames are the kernel's names of the registers (arch/x86/kernel/ptrace.c,
// regoffset_table), by number.
var regNames = [...]string{
	"ax", "cx", "dx", "bx", "sp", "bp", "si", "di",
	"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
}

// Selectors of a 64-bit user program (arch/x86/include/asm/segment.h).
const (
	userCS = 0x33
	userDS = 0x2b
)

// abi is a calling convention: the registers of integer words, in order, and where the
// words after them stand at the entry.
type abi struct {
	name    string
	args    []Reg
	results []Reg
	// stack is the word of the stack that holds the first argument beyond the
	// registers, at entry; 0: such arguments can not be counted.
	stack int
}

var (
	sysV  = &abi{"the C convention", sysVWords, []Reg{RAX, RDX}, 1}
	goReg = &abi{"Go's ABIInternal", goWords, goWords, 0}
	goABI = &abi{"Go's assembly convention", nil, nil, 1}
)

// sysVWords are the registers of the first integer words of the C convention (psABI 3.2.3).
var sysVWords = []Reg{RDI, RSI, RDX, RCX, R8, R9}

// goWords are the registers of integer words of ABIInternal
// (cmd/compile/abi-internal.md).
var goWords = []Reg{RAX, RBX, RCX, RDI, RSI, R8, R9, R10, R11}

func (x86) ABI(goProgram, abi0 bool) arch.ABI {
	switch {
	case !goProgram:
		return sysV
	case abi0:
		return goABI
	}
	return goReg
}

// Reg finds a register by its kernel name.
func (*abi) Reg(name string) (fetch.Base, bool) {
	for i, n := range regNames {
		if n == name {
			return fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(i)}, true
		}
	}
	b := fetch.Base{Kind: fetch.BaseReg, Reg: fetch.RegConst}
	switch name {
	case "ip":
		b.Reg = fetch.RegIP
	case "flags":
		b.Reg = fetch.RegFlags
	case "cs":
		b.Imm = userCS
	case "ss":
		b.Imm = userDS
	case "orig_ax": // not in a system call
		b.Imm = ^uint64(0)
	default:
		return fetch.Base{}, false
	}
	return b, true
}

// Arg gives an integer word of the arguments at the entry.
func (a *abi) Arg(n int) (fetch.Base, error) {
	switch {
	case n < 1:
		return fetch.Base{}, errno.Errorf(unix.EINVAL, "argument %d: arguments count from 1", n)
	case n <= len(a.args):
		return fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(a.args[n-1])}, nil
	case a.stack == 0:
		return fetch.Base{}, errno.Errorf(unix.EINVAL, "argument %d: %s passes %d integer words in registers; those after them stand where the types say",
			n, a.name, len(a.args))
	}
	return fetch.Base{Kind: fetch.BaseStack, N: a.stack + n - 1 - len(a.args)}, nil
}

// Stack is the stack pointer.
func (*abi) Stack() fetch.Base { return fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(RSP)} }

// RetVal gives an integer word of the results at a return, from 0.
func (a *abi) RetVal(n int) (fetch.Base, error) {
	if n < 0 || n >= len(a.results) {
		return fetch.Base{}, errno.Errorf(unix.EINVAL, "result word %d: %s returns %d in registers", n+1, a.name, len(a.results))
	}
	return fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(a.results[n])}, nil
}
