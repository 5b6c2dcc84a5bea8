package target

import "kprobes.dev/kprobes/internal/interval"

// ModuleLoader is a Target that takes modules of C: code that stands in the target, and whose functions are handlers that run in line (InLine).
// Who links a module gives it memory by NewModule and the bytes by Module.Write.
type ModuleLoader interface {
	// OpenModules prepares the target for modules, unless it is prepared already. The errors say why it takes none, and what to do.
	// Precondition: Prepare has succeeded.
	OpenModules(o *ModuleOptions) (*ModuleRuntime, error)
	// NewModule gives memory for a module, zeroed, where nothing runs yet. Precondition: OpenModules has succeeded.
	NewModule(size *ModuleSize) (Module, error)
	// FaultedHandlers gives the handlers in line that have come to be not called any more since it was called last.
	FaultedHandlers() []FaultedHandler
	// EndLoops ends handlers in line that do not end by themselves. It is to be called again and again.
	EndLoops()
}

// ModuleOptions are the choices of OpenModules. Those of the first call stay.
type ModuleOptions struct {
	Event int // number of the log's records in the ring
	Clock ModuleClock
	// Exclusive calls a function while nobody else changes the target; nil: nobody else does.
	Exclusive func(func() error) error
}

// ModuleClock is what ktime_get goes by: a moment of the processor's counter.
type ModuleClock struct {
	Tick, Nanos uint64 // the counter then, and CLOCK_MONOTONIC
	Length      uint64 // of a tick, in nanoseconds, with 32 bits behind the point
}

// ModuleRuntime is what modules are linked with.
type ModuleRuntime struct {
	Symbols map[string]uint64 // addresses of the functions that they call (linux/kp_runtime.h)
	CPUs    int               // what smp_processor_id() is less than: as many copies there are of per-CPU variables
	Strict  bool              // modules may use neither vector registers nor memory below their stack pointer
	// MaxActive is the most calls that a return probe follows which says nothing of it; 0: as many as the target's pool holds.
	MaxActive int
	// Lookup, if not nil, finds what the names of functions in Target.Space do not have, for kallsyms_lookup_name.
	Lookup func(name string) (addr uint64, ok bool)
	// Starter, if not nil, is to be hit while Module.Call runs: a task that comes there runs the function.
	Starter *ModuleGate
	// Faulted are to be hit as long as there are modules: they see what faults in handlers.
	Faulted []*ModuleGate
}

// ModuleGate is code of the target that hits come to (InLine.Gate) of probes at the entries of some functions, of which a target may lack any.
type ModuleGate struct {
	Gate uint64
	At   []string
}

// ModuleSize says how many bytes a module takes: multiples of the size of a page. 0: it has no such part.
type ModuleSize struct {
	Text, Rodata, Data uint64
	PerCPU             uint64 // of one CPU's copy; the copies stand one behind the other
	Heap               uint64 // for kmalloc
}

// ModuleMemory is where the parts of a module lie, with all copies of PerCPU.
type ModuleMemory struct {
	Text, Rodata, Data, PerCPU, Heap interval.Range
}

// All gives the parts.
func (m *ModuleMemory) All() []interval.Range {
	return []interval.Range{m.Text, m.Rodata, m.Data, m.PerCPU, m.Heap}
}

// Contains says whether a range lies in one of the parts.
func (m *ModuleMemory) Contains(addr, size uint64) bool {
	for _, r := range m.All() {
		if end := addr + size; r.Start <= addr && addr <= end && end <= r.End {
			return true
		}
	}
	return false
}

// Module is a module's memory in a target.
type Module interface {
	// Memory is where it lies.
	Memory() *ModuleMemory
	// Write writes some of it, also of its code. EFAULT: that is not the module's.
	Write(addr uint64, b []byte) error
	// Call runs a function of the module that takes no arguments, its start or its end, and answers its requests. It gives what the function has returned:
	// -EFAULT if something has faulted in it. It waits as long as the function does; the target runs meanwhile. It must not be called within Exclusive.
	Call(fn uint64, serve func(ModuleRequest) int64) (result int64, err error)
	// Unload takes the memory out. It waits for whoever is in the module's code, or on the way there. An error says who stays there: so does
	// the memory. Precondition: its handlers have been taken out (Caller.EndCall).
	Unload() error
}

// ModuleRequest is what the start or the end of a module asks for: linux/kp_runtime.h has the kinds.
type ModuleRequest struct {
	What int64
	Of   uint64
	N    int64
}

// FaultedHandler is a handler in line that is not called any more.
type FaultedHandler struct {
	Of    uint64 // its probe's struct
	Loops bool   // it did not end by itself; else something has faulted in it
}
