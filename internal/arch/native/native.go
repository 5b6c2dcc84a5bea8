// Package native is the instruction set of the processor that this program runs on, by names that no processor has for
// itself. The own process has it, other processes that can be probed have it, and so has a guest whose handlers run here.
//
// A second processor makes this file one of several, of which the build takes one: what it has to supply is what stands
// here.
package native

import (
	"iter"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/interval"
)

// Arch is the instruction set.
var Arch arch.Arch = amd64.X86

// Registers, and where they were taken.
type (
	Regs   = amd64.Regs
	Point  = amd64.Point
	Memory = amd64.Memory
)

// GoInt is where registers have the nth integer word of arguments or results by Go's ABIInternal.
func GoInt(r *Regs, n int) *uint64 { return amd64.GoInt(r, n) }

// GoFloat is where they have the nth floating-point number, in the lowest bytes.
func GoFloat(r *Regs, n int) *uint64 { return amd64.GoFloat(r, n) }

// What is known of single instructions.
const (
	MaxInst      = amd64.MaxLen       // bytes of the longest instruction
	PatchLen     = amd64.JumpLen      // bytes of a jump to a detour
	SignalReturn = amd64.SignalReturn // the code that a signal handler returns to, as C libraries and Go write it
)

// TaskInst is an instruction that may make a thread, or change what its thread pointer leads to.
type TaskInst = amd64.TaskInst

// Refs gives f what the instructions of straight code refer to.
func Refs(code []byte, addr uint64, f func(arch.Ref)) error { return amd64.Refs(code, addr, f) }

// Branches gives all that may be direct calls and jumps: the offset, and where they lead.
func Branches(code []byte, addr uint64) iter.Seq2[int, uint64] { return amd64.Branches(code, addr) }

// LongBranches gives what Branches does, and what may be conditional jumps that reach far.
func LongBranches(code []byte, addr uint64) iter.Seq2[int, uint64] {
	return amd64.LongBranches(code, addr)
}

// ShortReach is the farthest that jumps lead which reach least far, in bytes from where they begin.
const ShortReach = amd64.ShortReach

// Inside says whether a byte lies inside an instruction of code, which begins with one.
func Inside(code []byte, off int) bool { return amd64.Inside(code, off) }

// ShortJumps gives where the jumps lead that reach least far.
func ShortJumps(code []byte, addr uint64) iter.Seq[uint64] { return amd64.ShortJumps(code, addr) }

// JumpsInto says whether code at addr may jump directly to an address from lo up to hi.
func JumpsInto(code []byte, addr, lo, hi uint64) bool { return amd64.JumpsInto(code, addr, lo, hi) }

// StaticLoads lists the addresses of static data that straight code at addr refers to, in order.
func StaticLoads(code []byte, addr uint64) []uint64 { return amd64.RIPLoads(code, addr) }

// ThreadLoad finds the first load of a word at a fixed offset from the thread pointer, and gives the offset.
func ThreadLoad(code []byte) (off int32, ok bool) { return amd64.FirstFSLoad(code) }

// ConstantArg tells what the first argument is in a call of a Go function at off.
func ConstantArg(code []byte, addr, off uint64, assembly bool) (v int64, known, is bool) {
	return amd64.ConstantArg(code, addr, off, assembly)
}

// FindTaskInsts finds system calls and what changes thread pointers in code, ScanTaskInsts in the text of an object.
func FindTaskInsts(code []byte, addr uint64, function func(uint64) (lo, hi uint64, ok bool)) []TaskInst {
	return amd64.FindTaskInsts(code, addr, function)
}

// ScanTaskInsts is FindTaskInsts for text that is read piece by piece.
func ScanTaskInsts(text interval.Range, read func(uint64, []byte) error, function func(uint64) (lo, hi uint64, ok bool)) ([]TaskInst, error) {
	return amd64.ScanTaskInsts(text, read, function)
}

// KernelRuns says why the kernel's uprobe must not stand at an instruction.
func KernelRuns(code []byte) error { return amd64.KernelRuns(code) }

// RuleOf is the rule that a number in a target's memory stands for.
func RuleOf(code uint8) string { return string(amd64.RuleOf(code)) }
