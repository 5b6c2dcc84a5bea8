package self

//lint:file-ignore U1000 the assembly uses what looks unused

import (
	"kprobes.dev/kprobes/internal/interval"
)

// Handlers in line are functions of modules of C. They run at the hit, each in a slot, on the slot's stack (internal/arch/amd64, slotgate.go).
// Most programs take no modules: what makes handlers callable is behind interfaces and variables, so that the linker leaves it out of these.

// What EnableModules sets; nil, or 0: this program takes no modules.
var (
	newModules func(*Target)            // sets Target.caller and Target.modules
	lineLook   func(*plan, *worldState) // lookInLine
	loopLook   func()                   // lookLoops
	loopEnd    uint64                   // address of the code of endLoop
)

// inLines are the modules and their handlers, as the rest of the target sees them.
type inLines interface {
	// directory makes the directory of faults, and says how many entries it has.
	directory(h *heads) (n int, err error)
	// hold keeps the start and the end of modules from running from now on. EBUSY: one runs.
	hold() error
	// close takes everything out, after hold.
	close() error
}

// attachedLines are those of the attached target; nil: it was asked for none.
var attachedLines inLines

// lines is where their handlers run.
var lines linePlaces

// linePlaces is where handlers run in line, as a stop sees it. Zero: nowhere.
type linePlaces struct {
	code  interval.Range // of gates, and of what handlers call
	keys  uint64         // addresses: of the slots' keys
	slots uint64
	n     uint64 // slots
}

// ucR13 is where struct ucontext has the register in which a gate keeps its way back (internal/arch/amd64, call.go).
const ucR13 = 80
