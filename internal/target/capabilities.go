package target

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/symbol"
)

// Capabilities are what a target can do beyond what each one does. What is nil it can not do.
type Capabilities struct {
	Caller         Caller
	Describer      Describer
	Recoverer      Recoverer
	Finder         Finder
	ReturnReplacer ReturnReplacer
	Sharer         Sharer
	Yielder        Yielder
	Exposed        Exposed
	Reserver       Reserver
	Sequencer      Sequencer
	Filterer       Filterer
	Beginner       Beginner
	PendingLister  PendingLister
	Clocked        Clocked
	Reaper         Reaper
	Tallier        Tallier

	// Own says that the target is the process that runs the engine.
	Own bool
	// Alive says why no probe can be armed at present.
	Alive func() error
	// Stands says why no code can stand for a probe at an address.
	Stands func(addr uint64) error
	// FuncDenied says why a function must not be probed; "": it may.
	FuncDenied func(r symbol.Resolved) (why string)
	// FaultsCaught says whether a load of a probe in the function at an address may fault without being
	// checked first.
	FaultsCaught func(fn uint64) bool
	// RecordsComm says whether records hold the thread's name.
	RecordsComm func() bool
	// Guards are calls to be made at the entries of functions, by name, once there are handlers: what handlers must not
	// do is met there.
	Guards func() map[string]*arch.Call
	// InHandler says whether a handler of the target's probes calls.
	InHandler func() bool
	// Task is the id of the thread whose registers these are.
	Task func(*native.Regs) uint64
	// EndPool takes back a pool that no probe's code uses any more.
	EndPool func(*arch.Pool)
	// Idle says whether no thread is in code that has been taken out.
	Idle func() bool
	// CodeUsed is how many bytes of generated code are taken.
	CodeUsed func() uint64
	// CPUs is the number of CPUs, where that is not this machine's.
	CPUs func() int
}
