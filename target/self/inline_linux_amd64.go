package self

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

// Handlers in line are functions of modules of C. They run at the hit, each in a slot, on the slot's stack (internal/arch/amd64, slotgate.go).
// Most programs take no modules: what makes handlers callable is behind an interface, so that the linker leaves it out of these.

// What EnableModules sets; nil: this program takes no modules.
var (
	newModules func(*Target) target.ModuleLoader // makes the ModuleLoader of a target
	lineLook   func(*plan, *worldState)          // lookInLine
	loopLook   func()                            // lookLoops
)

// inLineCaller makes handlers in line callable. The methods but newCall do nothing, and say so, for a call that is none of them.
type inLineCaller interface {
	newCall(h *target.Handler) (*arch.Call, error)
	endCall(c *arch.Call) (is bool)
	quiet(c *arch.Call) (is bool)
	missed(c *arch.Call) (m target.Missed, is bool)
	// wake has those be called again that quiet has switched off for a time.
	wake()
	// enter puts what may fault there into the directory of faults.
	enter(dir []byte) []byte
	// hold keeps the start and the end of modules from running from now on. EBUSY: one runs.
	hold() error
	// close takes everything out, after hold.
	close() error
}

// linePlaces is where handlers run in line, as a stop sees it. Zero: nowhere.
type linePlaces struct {
	code  interval.Range // of gates, and of what handlers call
	keys  uint64         // addresses: of the slots' keys
	slots uint64
	n     uint64 // slots
}

// ucR13 is where struct ucontext has the register in which a gate keeps its way back (internal/arch/amd64, call.go).
const ucR13 = 80
