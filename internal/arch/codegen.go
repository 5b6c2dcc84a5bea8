package arch

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/ring"
)

// CodegenEnv says what generated code knows of the process it runs in.
type CodegenEnv struct {
	Ring   uint64 // where the ring is mapped
	Layout ring.Layout

	// HasRseq says that the process's threads register a restartable sequence at
	// RseqOff from the FS base; one that has not done so takes the locked way.
	HasRseq bool
	RseqOff int32

	TID    ThreadID
	TIDOff int32
	// NoTID: no system call may be made to learn the thread's id, for it could end a thread (seccomp):
	// where it would be, the id is 0.
	NoTID bool

	// NoName: likewise for the thread's name: it is 0.
	NoName bool

	// Shared is the address of a 32-bit word in the process's own memory. While it is not 0 the FS base of
	// a thread may be that of another's block, or lead anywhere: generated code uses nothing that lies
	// there. What sets it is RoleShare. 0: there is no such word, and FS always leads to the thread's own block.
	Shared uint64

	// PlainLoads: no system call may be made, for it could end a thread (seccomp). Else a
	// record whose arguments read memory asks which signals its thread blocks, and checks
	// its loads where these are the signals of a fault.
	PlainLoads bool
	// Resident is where the address of the handler stands that catches faults of loads: its
	// loads are checked too once the program has another for SIGSEGV. 0: it can not have one.
	Resident uint64

	// Handled is the address of a 32-bit word in the process's own memory: while it is 0 the program has not put
	// another in the place of the resident handlers, and is not asked. 0: there is no such word.
	Handled uint64

	// Asks is the address of a 64-bit word, which a Work with PlainLoads takes in the place of its thread's signal
	// mask: it is all ones until the resident handler is there, then 0. 0: the handler is there.
	Asks uint64

	// Masks is what is known of the signal masks of a Go program's threads that call C; nil: as long as a Go function runs that a Work with
	// PlainLoads is in, no mask changes. With it Handled is not 0, and Asks is 0.
	Masks *Masks

	// Quiet is the address of a 64-bit word: while it is not 0 generated code makes no system
	// call, since the program has taken on a filter that may forbid it (RoleQuiet). Arguments
	// that would need one can not be read then. 0: there is no such word.
	Quiet uint64

	// Unwind is the address of a word that leads to the list of unwind tables (native.UnwindTable); 0: there is none, and no
	// stack can be recorded.
	Unwind uint64

	// Gate is the address of the code that calls handlers whose Call names no other; 0: there is none.
	Gate uint64

	// Features of the CPU that code may use, by the instruction set's own numbers.
	Features uint64

	Go     *GoRuntime // nil if the program is not a Go program
	Kernel *Kernel    // nil if it is no kernel
}

// Pool is where the instances of one return probe live: a table of slots in the
// process's private memory. A slot holds its key, 0 if it is free, and the values
// saved at entry.
type Pool struct {
	Base   uint64
	Slots  int    // log2 of the number of slots
	Stride int    // log2 of the bytes of a slot
	Max    uint32 // most instances at once; 0: as many as there are slots
	Active uint64 // address of a 32-bit count of instances; used only with Max
}

// HistTable is the memory of a histogram, zeroed before the first hit (native.HistBytes).
type HistTable struct {
	Hist *fetch.Hist
	Addr uint64
	Of   *HistTable // has the variable that Hist.Since reads
	// Traces are counted in too at each hit that counts: their numbers are the hit's. They trace nothing, and have no variables.
	Traces []*HistTable
	// Code is native.HistCode: a program that has no histograms is linked without it.
	Code any
}

// TID says whether the thread's id is among the numbers.
func (t *HistTable) TID() bool {
	return t.Hist.TID() || slices.ContainsFunc(t.Traces, (*HistTable).TID)
}

// Trampoline is what the return addresses of one function's calls are replaced with: stubs,
// each of which stands for one return address, and their table. They must stay where they are
// as long as a call may return to one of them.
type Trampoline struct {
	Stubs uint64 // address of the first stubs, executable
	More  uint64 // address of the others
	Table uint64 // address of the first stubs' table, written by generated code; from each stub its word is as far
	// Lo is where the room begins that all functions' stubs and tables stand in, and Size how large
	// it is: a power of two that divides Lo.
	Lo, Size uint64
	// Mapped is the address of a word that tells how much of the room is mapped, from Lo on.
	Mapped uint64
	// Off is the address of a 32-bit word: while it is not 0 no return address is replaced, and
	// such calls are missed; 0: there is no such word.
	Off uint64
}

// Role says what a Work does.
type Role uint8

// Roles.
const (
	RoleRecord Role = iota // record (or count) at the point
	RoleEntry              // a return probe's entry: claim an instance
	RoleExit               // a return probe's exit: find the instance, record (or count), give it back
	RoleWait               // record, then wait a bounded time for the tracer's answer
	RoleCall               // call a handler
	RoleQuiet              // where the program takes on a seccomp filter: count up CodegenEnv.Quiet
	RoleUnwind             // where a walk over the stack asks about a frame: show it the real return address
	RoleShare              // at the entry of a function of the C library that may make threads share a block (Work.Share)
	RoleLeft               // tell of calls that a goroutine leaves (ProbeOp.Left); in Left.Calls: record one of an event
)

// Share is a function of the C library that a thread can be made by which has no block of its own, or by
// which a thread can move its FS base. Arguments are those of the System V convention.
type Share uint8

// The functions.
const (
	ShareVfork   Share = iota // vfork(): the child uses its parent's block
	ShareClone                // clone(fn, stack, flags, arg, parent_tid, tls, …)
	ShareClone3               // clone3(struct clone_args *, size, …), called by the C library alone
	ShareSyscall              // syscall(number, …)
	ShareBase                 // arch_prctl(code, …)
	ShareAction               // sigaction(signal, new, …): it makes no task, but may replace a handler (CodegenEnv.Handled)
)

// Call is a handler as generated code knows it: what a target made of it stands at Desc,
// and a gate is given that address.
type Call struct {
	Desc uint64
	// Gate is the address of the code that calls it; 0: the target's (CodegenEnv.Gate).
	Gate uint64
	// Room is the stack, in bytes below the stack pointer, that the gate needs for it. A Go
	// function's entry grows the stack to have it; elsewhere the gate sees what is there.
	Room int
	// Internal: it is the engine's own, and nobody is told of it.
	Internal bool
}

// Action is what a handler wants to be done when it has returned.
type Action uint8

// Actions.
const (
	ActionGo    Action = iota // go on
	ActionLeave               // go on where the handler's Regs say, and not with the instruction
	ActionDrop                // RoleEntry: give the instance back, its return is not looked at
)

// WaitedInVain is a bit of the second word of ProbeOp.Wait. Others are the tracer's.
const WaitedInVain = 1

// Value is what a register holds.
type Value struct {
	Reg  fetch.Reg
	Bits uint32
}

// ProbeOp is what one probe does at one point.
type ProbeOp struct {
	Event int
	Role  Role
	Count bool // count runs instead of recording them
	Prog  *fetch.Program
	// Filter, if not nil, is what a run must pass to be recorded (fetch.Filter.InCode); the others are counted as hits.
	Filter *fetch.Filter
	// CountPassing: no run is recorded. Those that pass Filter are counted as hits, and the others as filtered (ring.CtrFiltered).
	CountPassing bool
	// Hist, if not nil, is the histogram that runs are counted in, in place of a record. Not in a kernel.
	Hist *HistTable
	// Budget, if not nil, bounds the runs of a RoleRecord or a RoleExit that records, or has a filter or a histogram. Not in a kernel.
	Budget *Budget
	// Sample, if not nil, says which runs of a RoleRecord or a RoleExit are recorded, of those that pass Filter. One that is not is counted,
	// at a SampleEnter as unsampled (ring.CtrUnsampled), else as a hit. Not in a kernel.
	Sample *Sample
	// Left is what a RoleLeft tells of; nil in Left.Calls.
	Left *Left
	// Tick is the length of a tick of the clock in nanoseconds, as a number with 32 bits behind the point, where Prog has a duration, or
	// Hist the time since another hit.
	Tick uint64
	// Frame is the rule by which the walk over the stack begins, where Prog records it.
	Frame objfile.FrameRule
	Pool  *Pool // RoleEntry and RoleExit
	// Instance is the event that the instances of a RoleExit, or of one of Left.Calls, belong to.
	Instance int
	// Epoch is the number of the code that a RoleEntry and a RoleExit are of: an exit knows the instances of
	// entries of its own number only. Code that comes after a time without any has another one: the
	// returns of that time were not seen, and another call may have an earlier one's key.
	Epoch uint16
	// Wait is the address of two words for RoleWait: the answer, which the tracer counts
	// up, and one in which generated code sets WaitedInVain when none came. It waits while that is zero.
	Wait uint64
	// Installs are the ways to take on a filter that a RoleQuiet looks for: the values of
	// registers, of which 32 bits count. One that fits counts.
	Installs [][]Value
	// Trampoline is where the function's return addresses are replaced: RoleEntry replaces
	// them, RoleExit stands behind them, RoleUnwind undoes it for who looks. nil: the exits are
	// instructions of the function.
	Trampoline *Trampoline
	// Share is the function of a RoleShare, and Library where the code of its library lies: who calls clone from
	// there makes a thread with a block of its own, which it has not registered yet.
	Share   Share
	Library interval.Range
	// PlainLoads: no thread that is at the point blocks the signals of a fault, and the resident handler catches them
	// (from when on says CodegenEnv.Asks): nothing is asked before a load.
	PlainLoads bool
	// Unknown: the exit is a tail jump, so the function's value is not known here.
	Unknown bool
	// Call is the handler of a RoleCall. That of a RoleEntry or a RoleExit, if not nil, is
	// called with the instance, in place of a record.
	Call *Call
	// Room is the stack, in bytes below the stack pointer, that is to be had at a Go
	// function's entry, beyond what a Call at the point asks for: for what comes later in
	// the call.
	Room int
	// Fault: the handler of a RoleCall runs when the instruction faults, with the trap number
	// in place of the instance. ActionDrop: the program is told, as without it; else the
	// instruction is run again. Not in a kernel.
	Fault bool
	// After: the handler of a RoleCall runs when the instruction has been executed; before
	// one that goes elsewhere (a jump, a call, a return) it runs just before it goes.
	After bool
}

// Budget is the memory of a budget.
type Budget struct {
	Addr  uint64 // of its words: BudgetHits and those behind it
	Timed bool   // some of the runs within the budget tell how long they take
	// Code is native.BudgetCode: a program that has no budgets is linked without it.
	Code any
}

// The words of a budget, 8 bytes each, as offsets from its address. A run counts BudgetHits up before it tests a filter or reads an
// argument. If BudgetHits was not below BudgetLimit it counts BudgetOver up, and does nothing else. A return probe's instance is given back
// in any case. With Budget.Timed each BudgetEach-th run that does its work adds the ticks of that to BudgetTicks, but no more than BudgetLongest, and
// counts BudgetTimed up. The tracer writes the limit, generated code the others.
const (
	BudgetHits  = 0
	BudgetLimit = 8
	BudgetOver  = 16
	BudgetTicks = 24
	BudgetTimed = 32
	BudgetSize  = 64 // bytes from one budget to the next: two share no cache line

	BudgetEach    = 64
	BudgetLongest = 1 << 15 // a thread that loses its CPU meanwhile does not work
)

// Fixup tells where to go on when the load at At faults.
type Fixup struct{ At, To uint64 }

// Detour is the generated code of one region.
type Detour struct {
	Addr   uint64
	Code   []byte
	Pairs  []Pair  // the region's instructions and their copies, then what comes behind and Back
	Back   uint64  // the jump to what comes behind the region; 0: there is none
	Fixups []Fixup // sorted by At
	Faults []FaultStub
	Points []PointEntry // of each point with work to do at it, in order of address
}

// Begin is where a thread goes that is to run an instruction of the region, with the work at it if
// there is any, else its copy.
func (d *Detour) Begin(p Pair) uint64 {
	for _, b := range d.Points {
		if b.Point == p.Orig {
			return b.At
		}
	}
	return p.Copy
}

// PointEntry is where the work at a point begins: a thread that is to run the instruction there
// with its probes goes to At.
type PointEntry struct{ Point, At uint64 }

// FaultStub is where a thread goes on when the copy of an instruction faults, and handlers are
// told of that first (Work.Fault).
type FaultStub struct{ Copy, Stub uint64 }

// Pair is an instruction's address and that of an instruction of its copy in a detour.
// A copy of several instructions (an emulated call) has several pairs, first things
// first; a thread that goes back to Orig from one of them adds SP to its stack pointer.
type Pair struct{ Orig, Copy, CopyEnd, SP uint64 }

// ThreadID says how generated code learns the id of the thread it runs on.
type ThreadID uint8

// Sources of the thread id.
const (
	TIDSyscall ThreadID = iota // gettid, each time
	TIDThread                  // a 32-bit word at CodegenEnv.TIDOff from the thread pointer
	TIDGo                      // g.m.procid
)

// GoRuntime holds the offsets of a Go program's runtime that generated code needs, in
// bytes.
type GoRuntime struct {
	TLS     int32 // of the pointer to the running g, from the FS base
	StackLo int32 // g.stack.lo
	StackHi int32 // g.stack.hi
	M       int32 // g.m
	GoID    int32 // g.goid
	ProcID  int32 // m.procid
}

// Masks tells which threads of a Go program with C code have the signals of a fault open. C code may change the mask of a thread that calls it. The
// runtime counts these calls, so what the kernel has once answered holds for as long as the thread has called nothing more.
type Masks struct {
	_ [0]func() // nobody compares it: the linker leaves out how
	// Table is the address of MaskSlots words in the process's own memory, 0 at first. One has a number that is made of a thread and its count of calls.
	Table uint64
	// Offsets in m, see goabi.Layout.
	IsExtra, NCgoCall, NCgo int32
	// Code is native.MaskCode: a program that probes no such process is linked without it.
	Code any
}

// MaskSlots is log2 of the words of Masks.Table.
const MaskSlots = 6

// Kernel holds what generated code needs to know of the Linux kernel that it runs in. A
// per-CPU offset is what instructions add to the GS base. Functions are run-time addresses of
// the kernel's own, which take faults in what they read (mm/maccess.c); their names and
// signatures are those of Linux 6.1.
type Kernel struct {
	CPU     int32 // per-CPU offset of the CPU's number, 32 bits
	Current int32 // per-CPU offset of the pointer to the running task
	Preempt int32 // per-CPU offset of the preemption count, 32 bits
	PID     int32 // offset of pid in struct task_struct, 32 bits
	Comm    int32 // offset of comm there, 16 bytes

	ReadKernel   uint64 // copy_from_kernel_nofault(dst, src, size): 0 or negative
	ReadUser     uint64 // copy_from_user_nofault(dst, src, size): 0 or negative
	StringKernel uint64 // strncpy_from_kernel_nofault(dst, src, count): length with NUL, or negative
	StringUser   uint64 // strncpy_from_user_nofault(dst, src, count): likewise
	LengthUser   uint64 // strnlen_user_nofault(src, count): length with NUL, 0 where it faults
	// Callers is stack_trace_save_regs(regs, store, size, skip), which stores return addresses and gives their number (since Linux
	// 5.2); 0: the kernel has none.
	Callers uint64
	UserEnd uint64 // addresses below are a user's (TASK_SIZE_MAX)

	// HardirqShift is the lowest of the four bits of the preemption count that count hard interrupts;
	// NMIs are above them. It is 16, and 24 in kernels that count there how often interrupts were
	// disabled; 0 is 16.
	HardirqShift uint8
	// WidePreempt: the preemption count has 64 bits, of which the highest says whether another task is
	// to run, and the lower 32 the rest.
	WidePreempt bool

	// Columns are what its trace lines have behind the CPU; nil stands for those of Linux since
	// 5.18 without PREEMPT_RT: KernelColumns.
	Columns []KernelColumn
}

// KernelColumn is a character that a kernel's trace line has behind the CPU.
type KernelColumn uint8

// The columns, by the head of a trace file (kernel/trace/trace.c).
const (
	ColumnIRQs      KernelColumn = iota // irqs-off
	ColumnIRQsBH                        // irqs-off/BH-disabled
	ColumnResched                       // need-resched
	ColumnInterrupt                     // hardirq/softirq
	ColumnDepth                         // preempt-depth
	ColumnOther                         // one that a record does not have
)

// KernelColumns are those of Linux since 5.18; the last is migrate-disable.
var KernelColumns = []KernelColumn{ColumnIRQsBH, ColumnResched, ColumnInterrupt, ColumnDepth, ColumnOther}

// MaxKernelColumns is the most that a record's context has room for; 5.10 with PREEMPT_RT has 7.
const MaxKernelColumns = 8
