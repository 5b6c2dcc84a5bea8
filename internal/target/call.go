package target

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
)

// Caller is a Target whose probes can call handlers: Go code of the tracer, which runs
// while the thread that hit waits.
type Caller interface {
	// NewCall makes a handler callable by generated code.
	NewCall(h *Handler) (*arch.Call, error)
	// EndCall forgets a call. Precondition: no site's code uses it any more. When it has
	// returned the handler does not run and will not run again.
	EndCall(c *arch.Call)
	// Quiet waits until the call's handler, whose Off has been set, is not run by anybody.
	Quiet(c *arch.Call)
	// Missed tells how often the call's handler was not run, by cause.
	Missed(c *arch.Call) Missed
}

// Handler is what is to be called at a point. A handler runs on the thread that hit, in
// the process itself, or on the tracer's. Two runs of it may overlap.
type Handler struct {
	// Run is given the registers, and the address of the instance for a RoleEntry or
	// RoleExit (0 else), which is the same at a call's entry and at its return.
	Run func(r *native.Regs, instance uint64) arch.Action
	// Fault, if not nil, is told of a fault (a trap number of the CPU) or a panic
	// (TrapPanic, with the reason) in Run. True: it is dealt with. Run has been abandoned
	// in the middle then.
	// The reason may be asked for its text later, and not by a handler: that may run the program's code.
	Fault func(r *native.Regs, trap int, why fmt.Stringer) bool
	// Name is what messages call the handler's owner: the kind of probe, and where it stands.
	Name string
	// Point is what the Regs are bound to; Mem and Callers are filled in by the target.
	Point native.Point
	// WideVectors says that all vector registers must be kept (arch.Function.WideVectors), not only
	// what Go's calling convention asks for.
	WideVectors bool
	// Sleepable: Run may block. It runs on a goroutine of its own then.
	Sleepable bool
	// Off, if not nil and set, has hits pass that were on their way when their site was taken
	// out: Run is not called, the action is ActionDrop, and nothing is counted.
	Off *atomic.Bool
	// Entry, if not nil, is called after Run, whose action does not matter then, with the
	// probed function's own arguments: a closure of the same signature (a func value's pointer). Stack is the
	// number of bytes of arguments on the stack, Spill those of the stack that a callee may
	// use: for results and for spilled registers.
	Entry        unsafe.Pointer
	Stack, Spill int
	// InLine, if not nil, runs instead of Run: code in the target itself, at the hit. Fault is not told of its faults.
	InLine *InLine
}

// InLine is a function of a module that was loaded into the target.
type InLine struct {
	Addr    uint64 // of the function, in the target
	Of      uint64 // the address of its probe's struct; the second argument is the registers (struct pt_regs)
	Kind    InLineKind
	Vectors bool // it uses vector registers
	Use     native.SlotUse
	// Fault is the address of a function that is called where something faults in it (fault_handler of linux/kprobes.h); 0: there is none.
	Fault uint64
	// Gate, if not 0, is code of the target that hits come to in place of the handler's gate (ModuleGate). There is no function of a module then.
	Gate uint64
	// Calls is what a return probe's handlers share.
	Calls *InLineCalls
}

// InLineKind says when a function of a module runs.
type InLineKind int

// The kinds.
const (
	InLinePre InLineKind = iota
	InLinePost
	InLineEntry // of a function whose returns are probed
	InLineReturn
	InLineJump // before the instruction at a function's entry, with the function's own arguments
)

// InLineCalls are the calls that the handlers of a return probe are told of.
type InLineCalls struct {
	Data  int  // bytes of each call's own
	Entry bool // there is an entry handler: without its 0 the return handler does not run
	Pool  *arch.Pool
}

// Why is a reason whose text is known.
type Why string

func (w Why) String() string { return string(w) }

// TrapPanic is the trap number of a panic.
const TrapPanic = -1

// Missed counts hits at which a handler was not run.
type Missed struct {
	Busy    uint64 // a handler was running on the thread already
	System  uint64 // the thread ran no goroutine that a handler could interrupt (self), or not in time (process)
	Stopped uint64 // the handler was switched off after a fault
}
