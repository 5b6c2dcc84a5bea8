package target

import (
	"io"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/interval"
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
	Unwinder       Unwinder
	Sharing        MemorySharer
	Watcher        Watcher
	Namer          Namer
	ModuleLoader   ModuleLoader

	// Own says that the target is the process that runs the engine.
	Own bool
	// Alive says why no probe can be armed at present.
	Alive func() error
	// Ended says whether the address space is gone for good: no record will come any more. It may be called at any time.
	Ended func() bool
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
	// CallGo calls a closure by Go's ABIInternal, in a handler, with the argument registers of regs, a copy of stack bytes of
	// arguments from args on, and spill bytes above them for its use.
	CallGo func(fn unsafe.Pointer, regs *native.Regs, args uint64, stack, spill int)
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

// Beginner is a Target whose program may have been probed before it had signal handlers.
type Beginner interface {
	// Begins is the entry of a function that the program passes once it has them, and before any code of its own, and
	// the words for a probe of RoleWait there. ok is false if it has them, or no thread may be made to wait.
	Begins() (place symbol.Resolved, words uint64, ok bool)
	// Begin sees whether it has them now, and puts those of the engine in front of them: from then on records
	// ask nothing where arch.CodegenEnv.Asks says so. What can not be done now is tried again by a later Begin.
	// done is false if it has them, and that failed.
	Begin() (done bool)
}

// Namer is a Target that tells itself what the names of its functions' parameters stand for: no file has debug information of them.
type Namer interface {
	// Names gives what can be named at the entry and the returns of a function, which the definition calls name; "": by its address.
	// What is returned may be a fetch.ResultType too.
	Names(r symbol.Resolved, name string, abi arch.ABI) fetch.Namer
}

// Clocked is a Target whose records carry the ticks of a clock of its own, and not those of
// this machine's counter.
type Clocked interface {
	// Nanos is the time at a tick on a CPU, in nanoseconds, as the target itself tells it.
	Nanos(tick uint64, cpu int) uint64
	// Tick is the length of a tick in nanoseconds, as a number with 32 bits behind the point.
	Tick() (uint64, error)
}

// Describer is a Target that knows more of a function than its symbol tells, and whose code
// is not what a file has: it is looked at anew each time.
type Describer interface {
	// Describe completes what the analysis of a function is given: Code and Parts have
	// been read from memory. The error says why nothing may stand in the function.
	Describe(r symbol.Resolved, f *arch.Func) error
	// Notrace says why no event may stand in a function, though a probe with handlers may;
	// nil if one may.
	Notrace(r symbol.Resolved) error
	// InsnDenied says why no probe may stand at an instruction, nil if one may.
	InsnDenied(addr uint64) error
}

// Exposed is a Target in whose code others may write while probes stand.
type Exposed interface {
	// Reachable says whether others can come to write into a site without asking, as the kernel does for a
	// uprobe on the file.
	Reachable(s *Site) bool
	// Written gives those of sites whose bytes are not their patches any more. Sites are in the order of
	// their addresses.
	Written(sites []*Site) ([]*Site, error)
}

// Filterer is a Target whose threads may come to be forbidden system calls that generated code makes
// (arch.CodegenEnv.Quiet).
type Filterer interface {
	// FilterCalls are the functions by which that happens: each is to have a probe of RoleQuiet.
	FilterCalls() []FilterCall
	// CheckFilters sees whether it has happened, and what is forbidden. first: the probes on
	// FilterCalls have just been armed. The error says what is not done any more, once.
	CheckFilters(first bool) error
}

// Finder is a Target that knows which objects can come to be mapped.
type Finder interface {
	// Find says why no object of a name that is not mapped can come, nil if one can.
	Find(name string) error
	// File gives the path under which the file of an absolute path is mapped. ENOENT: there is none; EINVAL: it is no regular file;
	// EOPNOTSUPP: the target maps no files.
	File(name string) (string, error)
}

// PendingLister is a Target whose memory can tell a listing of probes that are not armed: they wait for a
// thread, or for their object.
type PendingLister interface {
	// Note replaces what was noted before. The sites have no patch.
	Note(waiting []*Site) error
}

// Recoverer is a Target whose code is read as it stands: the patches of a tracer that was killed
// are in it.
type Recoverer interface {
	// Recover takes out what a tracer has left that is proven to be gone. It comes before any code
	// is analysed. EBUSY: one that lives holds the address space.
	Recover() error
}

// Reserver is a Target that maps room for code in the stop of Prepare.
type Reserver interface {
	// Reserve says, before Prepare, what will be asked of Code. It is a guess.
	Reserve([]Room)
}

// ReturnReplacer is a Target in which return addresses can be replaced (arch.Trampoline).
type ReturnReplacer interface {
	// Replaceable says why no return address may be replaced in the address space; nil: they
	// may, as far as it knows.
	Replaceable() error
	// Trampoline gives the trampoline of the function at an address, always the same one.
	// Precondition: Prepare has succeeded.
	Trampoline(fn uint64) (*arch.Trampoline, error)
	// Strays tells how many returns came through the trampoline of the function at an address
	// that belonged to no call that an event knew, and where on the stack the last of them
	// had its return address.
	Strays(fn uint64) (n, slot uint64, err error)
	// Caller gives the return address that the address of a stub stands for; any other
	// address as it is.
	Caller(addr uint64) uint64
	// Quiesce waits, for a bounded time, until no thread can replace a return address any
	// more. Precondition: no site that does so is armed.
	Quiesce() error
	// PutBack puts the return addresses back of the calls that are in progress. It is to be
	// called by Change.Then. Precondition: that of Quiesce.
	PutBack() error
}

// Sequencer is a Target that makes several changes in one stop (Change.Next).
type Sequencer interface {
	// CloseStopped does what Close does in a stop, where nothing is in the way. It is for Change.Then of the
	// last change, with no site left. Close must be called all the same.
	CloseStopped()
}

// Sharer is a Target whose threads may come to share the memory at their FS base, or to have another base
// (arch.CodegenEnv.Shared).
type Sharer interface {
	// Sharers lists the functions by which they do: each must be probed, by arch.RoleShare, before any other
	// event is armed. Precondition: Prepare has succeeded.
	Sharers() []Sharing
	// CheckOwn looks, once they are probed, whether a thread was faster.
	CheckOwn() error
	// SetShared says that it may be so from now on, in place of the probes.
	SetShared() error
}

// Unwinder is a Target in which generated code can walk over the stack (arch.CodegenEnv.Unwind). What it maps stays until Close.
// Precondition: Prepare has succeeded.
type Unwinder interface {
	// MapTable brings bytes into the address space, where nobody can change them.
	MapTable(b []byte) (addr uint64, err error)
	// NewTable gives size bytes of zeroed memory, which WriteTable writes.
	NewTable(size int) (addr uint64, err error)
	WriteTable(addr uint64, b []byte) error
	// SetUnwind sets the word that leads to the list.
	SetUnwind(list uint64) error
}

// MemorySharer is a Target that has memory which its code writes and the tracer reads. Precondition: Prepare has succeeded.
type MemorySharer interface {
	// ShareMemory gives size bytes of zeroed memory, which stays until Close. what says what it is for, where there is no room for it.
	ShareMemory(what string, size int) (addr uint64, m SharedMemory, err error)
}

// SharedMemory is memory of a target that the tracer has too. It tells after Close what it has held.
type SharedMemory interface {
	io.ReaderAt
	// Load reads a word of 8 bytes at an offset, a multiple of 8, at once. Store writes one; after Close nobody sees that.
	Load(off uint64) uint64
	Store(off, v uint64)
}

// Watcher is a Target whose processor watches memory.
type Watcher interface {
	// Watch arms a watchpoint in all threads that there are and that come. ENOSPC: those that the processor has are taken.
	Watch(w *Watch) (ExternalProbe, error)
}

// Yielder is a Target that others may trace, whose breakpoints may fall into patches.
type Yielder interface {
	// Tracer names who traces it; "": nobody else.
	Tracer() string
	// Yield puts the program's own bytes back at sites, if all threads are stopped by the tracer at this
	// moment; ok is false if they are not. The sites count as armed all the same: what is changed of them
	// later finds the bytes put back.
	Yield(sites []*Site) (ok bool, err error)
}

// FilterCall is a function that may forbid the calling thread, or all, to make system calls: it does
// if the registers at its entry are as one of Ways says.
type FilterCall struct {
	Place symbol.Resolved
	Ways  [][]arch.Value
}

// Room is room for code.
type Room struct {
	Lo, Hi uint64 // what it is to reach
	Size   int    // bytes
	Sites  int    // whose detours are to stand there; a guess, as Size
}

// Sharing is a function by which threads may come to share a block.
type Sharing struct {
	Place   symbol.Resolved
	Share   arch.Share
	Library interval.Range // see arch.ProbeOp
}
