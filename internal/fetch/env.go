package fetch

import "kprobes.dev/kprobes/event"

// Env is what a program's language and instruction set know about arguments: which
// register or word of the stack holds what, and where symbols are.
type Env interface {
	// Reg gives the base of a register by the kernel's name for it, without %.
	Reg(name string) (Base, bool)
	// Stack gives the base of the stack pointer at the probe point.
	Stack() Base
	// Arg gives the base of the nth integer word of the arguments, from 1, as it is at
	// the function's entry.
	Arg(n int) (Base, error)
	// RetVal gives the base of the nth word of the result, from 0, as it is at the
	// function's return.
	RetVal(n int) (Base, error)
	// Symbol gives the run-time address of a symbol of the program.
	Symbol(name string) (uint64, error)
	// Addr gives the run-time address that an address as nm prints it stands for.
	Addr(addr uint64) uint64
	// File gives the run-time address of the byte at an offset in the file that is probed, if that is mapped in one piece.
	File(off int64) uint64
}

// ResultType is an Env that knows the types of results.
type ResultType interface {
	// Result gives what $retval, with the steps behind it, stands for. nil: nothing is known of the result but where it is. Errors that
	// are a *NameError say where in it.
	Result(e *event.Expr) (*Var, error)
}

// Inliner is an Env of a place that may be where a call begins that was inlined.
type Inliner interface{ Inlined() bool }

// Failer is an Env that knows which functions of Go give errors.
type Failer interface {
	// Failed gives where the last result of a Go function has its type, if it is an error; nil: it is none, or that is not known.
	Failed() *Var
}

// CommStorer is an Env whose records may hold the name that the thread has at the hit ($comm).
type CommStorer interface{ StoresComm() bool }

// commSize is the size of a thread's name in a record (TASK_COMM_LEN, linux/sched.h).
const commSize = 16

// Watcher is an Env of a watchpoint.
type Watcher interface {
	// Watched is the address that is watched ($addr).
	Watched() uint64
}

// TypeRefuser is an Env that can not serve all types.
type TypeRefuser interface {
	// RefuseType gives the reason why a type can not be had there, "" if it can. In a kernel
	// see NoGoStrings.
	RefuseType(event.TypeKind) string
}

// NoGoStrings is RefuseType of a kernel.
func NoGoStrings(t event.TypeKind) string {
	if t == event.GoString {
		return "a kernel has no Go strings; use string or ustring"
	}
	return ""
}

// Point says where a program runs.
type Point uint8

// Points.
const (
	PointEntry  Point = iota // the first instruction of a function
	PointInside              // any other instruction
	PointReturn              // where a function returns
)
