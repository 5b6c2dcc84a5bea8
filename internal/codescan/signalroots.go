package codescan

import "slices"

// SignalFunc is a function, with a reason.
type SignalFunc struct{ Name, Why string }

// SignalCalls is what a function calls.
type SignalCalls struct {
	Caller  string
	Callees []string
}

func has(list []SignalFunc, name string) bool {
	return slices.ContainsFunc(list, func(n SignalFunc) bool { return n.Name == name })
}

// SignalRoots lists the functions of Go's runtime that begin to run with SIGTRAP blocked, or in which it becomes
// blocked. The names are those of Go 1.25 and 1.26, of which a program has some. Of the other users of signal masks in the runtime, ensureSigM
// and minitSignalMask leave SIGTRAP alone (blockableSig, runtime/signal_unix.go).
var SignalRoots = []SignalFunc{
	// Signal handlers: the kernel enters them with all signals blocked (setsig,
	// runtime/os_linux.go), and leaves them by the restorer.
	{"runtime.sigtramp", "the handler of all signals"},
	{"runtime.cgoSigtramp", "the handler of all signals in programs with C code"},
	{"runtime.sigprofNonGoWrapper", "called by a handler in C, after a traceback in C (cgoSigtramp)"},
	{"runtime.sigreturn__sigaction", "the return from all signal handlers"},

	// The birth of a thread: signals are blocked from before clone until minit.
	{"runtime.newosproc", "blocks signals while it makes a thread"},
	{"runtime.mstart", "a new thread begins here with signals blocked"},
	{"_cgo_sys_thread_start", "blocks signals while it makes a thread (runtime/cgo)"},
	{"threadentry", "a new thread begins here with signals blocked (runtime/cgo)"},
	{"crosscall1", "a new thread passes here with signals blocked (runtime/cgo)"},
	{"setg_gcc", "a new thread passes here with signals blocked (runtime/cgo)"},

	// Its death: blocked to the end.
	{"runtime.mexit", "blocks signals while a thread ends"},

	// A thread that C made comes to Go for a call, and leaves again.
	{"runtime.needm", "blocks signals until the thread has an m"},
	{"runtime.dropm", "blocks signals before the thread's m is taken away"},

	// Forks: signals are blocked in the parent around the fork. The child's handlers are
	// set back to the default, while it still shares the parent's memory.
	{"syscall.runtime_BeforeFork", "blocks signals before a fork"},
	{"syscall.runtime_AfterFork", "runs with signals blocked after a fork"},
	{"syscall.runtime_AfterForkInChild", "takes away the signal handlers of the child of a fork"},
	{"syscall.forkAndExecInChild1", "the child of a fork, which shares the memory and has no signal handlers"},
	{"syscall.forkAndExecInChild", "runs with signals blocked between the fork and runtime_AfterFork"},
	{"syscall.doCheckClonePidfd", "the child of a fork, which shares the memory"},

	// A program that probes itself blocks signals while it changes its code.
	{"kprobes.dev/kprobes/target/self.setMask", "blocks signals while probes change"},
	{"kprobes.dev/kprobes/target/self.onSystem", "runs with signals blocked while probes change"},
	{"kprobes.dev/kprobes/target/self.changeStopped", "runs with signals blocked while probes change"},

	// A goroutine that is asked to give way while it forks: it calls for more stack, finds that
	// it must go on, and does.
	{"runtime.morestack", "is called with signals blocked when a goroutine that forks is to be preempted"},
	{"runtime.morestack_noctxt", "as morestack"},
	{"runtime.newstack", "is called by morestack"},
	{"runtime.gogo", "goes back to the goroutine"},
	// One that is the first to need the template thread makes it on its own stack, which may have
	// to grow meanwhile.
	{"runtime.funcMaxSPDelta", "tells newstack how much stack a goroutine needs that makes the template thread (LockOSThread)"},
	{"runtime.copystack", "moves the stack of a goroutine that makes the template thread (LockOSThread)"},
}

// SignalCuts lists functions that are not followed and not part of the path themselves,
// wherever they are called, with the reason.
var SignalCuts = []SignalFunc{
	{"runtime.morestackc", "no stack is grown on a signal or system stack: the process ends with a message"},
	{"runtime.mcall", "leaves a goroutine for the scheduler; on a signal or system stack the process ends with a message"},
	{"runtime.gopanic", "a panic; on a signal or system stack the process ends with a message"},
	{"runtime.panicBounds", "as gopanic"},
	{"runtime.panicdottypeI", "as gopanic"},
	{"runtime.printpanicval", "shows the value of a panic when the process ends"},
	{"runtime.asyncPreempt", "doSigPreempt lets the interrupted code call it: runs after the handler's return"},
	{"runtime.sigpanic0", "preparePanic lets the interrupted code call it: runs after the handler's return"},
	{"runtime.goschedguarded_m", "given to mcall"},
	{"runtime.gosched_m", "given to mcall"},
	{"runtime.cgocall", "a call of C code by a goroutine; cgoContextPCs calls it only where no signal is handled"},

	{"runtime.(*synctestBubble).changegstatus", "only for goroutines of a test's bubble; the threads' own are in none"},
}

// SignalIndirect lists what functions of the path call through memory that is not a variable
// of its own, by the names of Go 1.25 and 1.26. It does not name C code that a program
// has as signal handler besides Go's, and the vDSO.
var SignalIndirect = []SignalCalls{
	{"runtime.(*fixalloc).alloc", []string{"runtime.recordspan"}}, // fixalloc.first of mheap_.spanalloc

	// sched.safePointFn: what forEachP is called with by the collector and by the tracer.
	{"runtime.handoffp", []string{
		"runtime.gcMarkDone.func1",
		"runtime.gcMarkTermination.func4",
		"runtime.traceAdvance.func2", // Go 1.26
		"runtime.traceAdvance.func5", // Go 1.25
	}},
}

// SignalVariables lists functions that call, or let asmcgocall call, what a variable holds:
// of others a word that looks like a function's address may be a number.
var SignalVariables = []string{
	"runtime.newm", // _cgo_thread_start
	"runtime.newm1",
	"runtime.callbackUpdateSystemStack", // _cgo_getstackbound
	"runtime.callCgoMmap",
	"runtime.callCgoMunmap",
	"runtime.callCgoSigaction",
	"runtime.cgoSigtramp",       // _cgo_callers
	"runtime.adjustSignalStack", // adjustSignalStack2Indirect
	"runtime.write",             // overrideWrite
}

// SignalLeaves lists functions that are part of the path but not followed, with the reason.
var SignalLeaves = []SignalFunc{
	{"runtime.newstack", "finds first of all that the goroutine must not give way, and goes on by gogo"},
	{"runtime.gcStart", "returns at once on a system stack"},
	{"runtime.gcAssistAlloc", "returns at once on a system stack"},
}

// SignalEdges lists calls that are not followed, with the reason.
var SignalEdges = []SignalEdge{
	{"runtime.mstart1", "runtime.mstartm0", "after minit"},
	{"runtime.mstart1", "runtime.acquirep", "after minit"},
	{"runtime.mstart1", "runtime.schedule", "after minit"},

	{"runtime.morestack", "runtime.badmorestackg0", "on a system stack the process ends with a message"},
	{"runtime.morestack", "runtime.badmorestackgsignal", "on a signal stack the process ends with a message"},

	{"syscall.forkAndExecInChild", "syscall.Close", "after runtime_AfterFork"},
	{"syscall.forkAndExecInChild", "syscall.writeUidGidMappings", "after runtime_AfterFork"},
	{"syscall.forkAndExecInChild1", "syscall.Pipe2", "before runtime_BeforeFork"},
	{"syscall.forkAndExecInChild1", "syscall.formatIDMappings", "before runtime_BeforeFork"},
	{"syscall.forkAndExecInChild1", "runtime.makeslice", "before runtime_BeforeFork"},
}

// Edge is a call.
type SignalEdge struct{ Caller, Callee, Why string }
