// Package objfile says what the files of programs have of a processor, for who reads them on any. Each processor
// has its description in a file of its own.
package objfile

import (
	"slices"
	"strings"
)

// Machine describes the files of a processor. What is nil or 0 is not known, and what asks for it does without.
type Machine struct {
	ELF  ELF
	Name string // for messages

	// Relocations, by their types: those that bind a slot of the GOT to a symbol, that which binds it to what a
	// resolver chooses, and that which adds where the file is mapped.
	Binds     []uint32
	IRelative uint32
	Relative  uint32

	// StubSlot gives the slot of the GOT that a stub of the PLT at addr jumps through.
	StubSlot func(stub []byte, addr uint64) (slot uint64, ok bool)
	// Padding is what the Go linker puts between functions; 0: anything.
	Padding byte

	// Calls gives f the direct calls that code at addr may have, at whatever byte they begin: the address behind
	// each, and where it leads. A call takes at most CallLen bytes.
	Calls   func(code []byte, addr uint64, f func(behind, to uint64))
	CallLen int

	// Call frame information, where a call arrives: the DWARF numbers of the stack pointer and of the return address, and
	// the bytes that a call pushes; also the frame pointer's number, and the expression for the CFA of a frame that the kernel
	// has made for a signal.
	FrameSP, FrameReturn uint64
	Pushes               uint64
	FramePointer         uint64
	SignalCFA            string

	// Register gives the number by which instructions encode a register of debug information, or that of a vector register.
	Register func(dwarf int) (reg uint8, vector, ok bool)

	// Unwinders are functions by which unwinders that know the processor step from a frame to its caller.
	Unwinders []string
}

// machines are those whose files are read.
var machines = []*Machine{&x8664, &aarch64}

// Of finds the description of a processor; nil: there is none.
func Of(m ELF) *Machine {
	i := slices.IndexFunc(machines, func(d *Machine) bool { return d.ELF == m })
	if i < 0 {
		return nil
	}
	return machines[i]
}

// Names are the names of the processors, for messages.
func Names() string {
	names := make([]string, len(machines))
	for i, m := range machines {
		names[i] = m.Name
	}
	return strings.Join(names, " and ")
}
