package arch

import "kprobes.dev/kprobes/internal/interval"

// Left has a hit tell of the calls that a goroutine has left without their returns: it goes on further out on its stack, as after a panic. Each such
// call has a record as at a return, the innermost first.
//
// The arguments of the hit's program say where: what begins with the g, the stack pointer that the goroutine had, the one that it goes on with, and the
// high end of its stack.
type Left struct {
	_ [0]func() // nobody compares it: the linker leaves out how
	// Calls are the events whose calls are told of, with the number that such records have. Not in a kernel, and without trampolines, handlers and
	// walks over the stack.
	Calls []ProbeOp
	// Text is where return addresses lead.
	Text interval.Range
	// Code is native.LeftCode: a program that asks for none of this is linked without it.
	Code any
}
