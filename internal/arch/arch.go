// Package arch says what an instruction set supplies to the engine: the analysis of a
// function, the plan of how a probe gets into it, and the code that the probe runs.
// The instruction sets are values that build on every host.
package arch

import (
	"errors"

	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/interval"
)

// Func is what the analysis of a function is given.
type Func struct {
	Name string
	Addr uint64
	Code []byte // its bytes as its file has them, padding excluded
	// Parts are pieces that the compiler moved away (name.cold), analysed with it.
	Parts []Part
	// Entries are further addresses inside that code outside enters: landing pads of
	// exceptions, other symbols.
	Entries []uint64
	Go      bool // compiled by Go
	// ABI0 says that a Go function follows Go's assembly convention.
	ABI0 bool
	// Mem reads the program's constant data; NoReturn says whether a call to an
	// address never returns; Inside gives the start of the function that holds an
	// address. Each may be nil.
	Mem      func(addr uint64, buf []byte) error
	NoReturn func(target uint64) bool
	Inside   func(addr uint64) (start uint64, ok bool)
	// After is what follows the code up to the next function, a few bytes of it.
	After []byte
	// Morestack says whether a call to an address grows the stack and starts the
	// function anew (Go).
	Morestack func(target uint64) bool
	// Keep are bytes that must stay where they are and as they are.
	Keep []interval.Range
	// Reserved is the number of bytes at the start, after a landing instruction, that
	// somebody else patches (a kernel's ftrace): the entry point is behind them.
	Reserved int
	// Tails says that a jump to another function counts as an exit, whose value is not known,
	// as it does in Go. Else a function that is left so has no exits that are all known.
	Tails bool
	// Returns says whether a jump to an address is a return (a kernel's return thunk). It may
	// be nil.
	Returns func(target uint64) bool
}

// Part is a piece of a function's code.
type Part struct {
	Addr uint64
	Code []byte
}

// Exit is an instruction that leaves a function for good.
type Exit struct {
	Addr uint64
	Tail bool // a jump to another function: the value is not known here
}

// Tail is a jump from a function to another: to Target, or to what the word at Slot points to,
// one of which is 0.
type Tail struct{ Target, Slot uint64 }

// Ref is an address that an instruction refers to.
type Ref struct {
	Kind RefKind
	To   uint64
}

// RefKind says what an instruction does with an address.
type RefKind uint8

// Kinds of references.
const (
	RefOther   RefKind = iota
	RefBranch          // goes or calls there
	RefAddress         // takes the address
	RefLoad            // loads the word there
)

// Arch is an instruction set.
type Arch interface {
	// Name is Go's name of it.
	Name() string
	// ABI tells where functions of a language take their arguments: of C, of Go's
	// ABIInternal, of Go's assembly (ABI0).
	ABI(goProgram, abi0 bool) ABI
	// Analyse takes a function apart.
	Analyse(f *Func) (Function, error)
	// ReturnDetour generates the code at addr that a trampoline leads to, and says where the instructions lie whose place
	// it takes.
	ReturnDetour(addr uint64, t *Trampoline, ops []ProbeOp, w *CodegenEnv) (*Detour, interval.Range, error)
}

// ABI is a calling convention, as far as fetch arguments ask for it.
type ABI interface {
	// Reg finds a register by the name that the kernel gives it, without r or e.
	Reg(name string) (fetch.Base, bool)
	// Arg gives the nth integer word of the arguments, from 1, at the entry.
	Arg(n int) (fetch.Base, error)
	// Stack is the stack pointer.
	Stack() fetch.Base
	// RetVal gives the nth integer word of the results, from 0, at a return.
	RetVal(n int) (fetch.Base, error)
	// Place tells where parameters are at the entry, and where results are at a return. An error says that the convention is
	// not known well enough.
	Place(params, results []Shape) (args, outs []Placement, err error)
}

// Function is an analysed function.
type Function interface {
	// Check says whether a probe can stand at addr at all: the error tells the
	// instruction around an address that is no boundary.
	Check(addr uint64) error
	// EntryPoint is the instruction at which a probe on the function's entry
	// stands: past a landing instruction, and in Go past the check of the stack.
	EntryPoint() uint64
	// Exits lists the instructions that leave the function. The error says why
	// they are not all known.
	Exits() ([]Exit, error)
	// Tails lists where the jumps go that leave the function, and with its return address
	// reach another, as far as that is one place.
	Tails() []Tail
	// ReadsReturn gives the first instruction that reads the function's own return address
	// where it lies on the stack; ok is false if none is seen.
	ReadsReturn() (addr uint64, ok bool)
	// Plan finds regions that cover the points, each by the best tactic that the policy
	// allows. refused holds the points that no region covers, and why. Both are not to be
	// changed: they are given again to who asks the same.
	Plan(points []uint64, p Policy) (regions []Region, refused map[uint64]error)
	// Detour generates the code for a region at addr.
	Detour(addr uint64, r Region, work map[uint64][]ProbeOp, w *CodegenEnv) (*Detour, error)
	// DetourSize is the most bytes that Detour will need.
	DetourSize(r Region, work map[uint64][]ProbeOp, w *CodegenEnv) (int, error)
	// Patch gives the bytes that a region's start becomes.
	Patch(r Region, detour uint64) ([]byte, error)
	// UsesWideVectors says whether the function's code uses vector registers beyond the low 128 bits
	// of the first 16, or may: a handler called in it must keep all of them.
	UsesWideVectors() bool
	// Ret gives the distance from the stack pointer to the return address of the call in
	// progress, in bytes, before the instruction at addr runs; ok is false where it is not
	// known.
	Ret(addr uint64) (bytes int, ok bool)
	// Next is where a thread stands when Work.After is done for the instruction at addr:
	// behind it, or at it if it goes elsewhere.
	Next(addr uint64) uint64
	// Release drops what can be found out again. What needs it later takes the time of
	// the analysis once more.
	Release()
}

// Region is a run of instructions that a patch replaces.
type Region interface {
	Start() uint64
	// Inner lists the addresses at which a thread that was stopped stands in the
	// middle of the patch: it must be moved to the copy.
	Inner() []uint64
	// Holds tells whether the region has an instruction at addr.
	Holds(addr uint64) bool
	Tactic() Tactic
	// Why says why it is not a faster tactic; nil for the fastest.
	Why() error
}

// Policy says which tactics may be taken.
type Policy struct {
	// Force takes this tactic for all points, or none; "": the best.
	Force Tactic
	// Traps is the reason why no breakpoint may stand in the address space, nil if one may.
	Traps error
	// Unoptimised are points at which a breakpoint is to stand, whatever else is safe.
	Unoptimised []uint64
	// Held are the instructions at which the kernel holds a uprobe: no region may have
	// one of them.
	Held []uint64
}

// ErrUnprobeable is in the chain of a refusal that no tactic can mend: the instruction can
// only run where it stands.
var ErrUnprobeable = errors.New("the instruction can not be probed")

// Refusal is the rule by which no jump, or no code at all, can stand at a point.
type Refusal interface {
	error
	// RuleCode is the number that stands for the rule in the memory of targets. It never changes.
	RuleCode() uint8
}

// PointError says that no generated code can serve a point, though the kernel's own probe,
// which uses nothing of the program, may stand there.
type PointError struct {
	Addr uint64
	Err  error
}

// Error tells why.
func (e *PointError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *PointError) Unwrap() error { return e.Err }

// Tactic is how a probe gets control.
type Tactic string

// Tactics, as they are printed.
const (
	TacticJump   Tactic = "jump"
	TacticBoost  Tactic = "boost"
	TacticStep   Tactic = "step"
	TacticUprobe Tactic = "uprobe" // held: by the kernel that the program runs on
	TacticBreak  Tactic = "break"  // held: by the machine that a guest runs on
	TacticWatch  Tactic = "watch"  // held: by the processor, for the kernel that the program runs on
)

// Held says whether the tactic is a probe that somebody else holds, outside of the target's
// own code.
func (t Tactic) Held() bool { return t == TacticUprobe || t == TacticBreak || t == TacticWatch }
