package amd64

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/ring"
)

// What a module in a kernel calls (linux/kp_runtime.h has the contracts), and the code that calls its start and end.
//
// Memory that may not be there is read by the kernel's own functions that take faults.

// KernelRuntimeEnv says what these functions know.
type KernelRuntimeEnv struct {
	KernelSlotEnv
	Event  int    // the number that lines of the log have in the ring
	MM     int32  // offset of mm in struct task_struct: 0 there for a thread of the kernel
	Clock  uint64 // as SlotRuntimeEnv has it
	Thread uint64 // the words of the task on which modules start and end (arch.ThreadState)
	Ticks  uint64 // of the time stamp counter that it waits for an answer
	// Modules is where modules' code lies, and Reads what of the gates may fault.
	Modules interval.Range
	Reads   []FaultEntry
}

// KernelRuntime is the code of those functions.
type KernelRuntime struct {
	Code    []byte
	Symbols map[string]uint64
	// Starter is the gate of a probe at the entry of a function that tasks call with interrupts on: the first one that comes runs the start or the end of a
	// module.
	Starter uint64
	// Faulted is the gate of a probe at the entry of a function whose arguments are the registers of a fault, and its trap number: one in a module goes to the
	// probe's fault handler, or ends the handler, and the function has returned 1. PageFaulted is that of a function which is told of page faults alone.
	Faulted, PageFaulted uint64
	// Abandon is where a CPU is sent, with interrupts off, whose handler is to end in the middle: as SlotRuntime has it.
	Abandon uint64
}

// NewKernelRuntime generates the functions at addr.
func NewKernelRuntime(addr uint64, env KernelRuntimeEnv, w *arch.CodegenEnv) (*KernelRuntime, error) {
	if err := env.check(); err != nil {
		return nil, err
	}
	if env.Ticks == 0 || env.Ticks >= 1<<62 {
		return nil, errno.Errorf(unix.EINVAL, "a wait of %d ticks: must be 1 to 2^62", env.Ticks)
	}
	g := &kernelRuntime{slotRuntime: slotRuntime{slotGate: slotGate{Asm: NewAsm(addr)}, w: writer{w}}, e: env}
	g.slotRuntime.e.Clock = env.Clock
	g.ended = g.Label()
	symbols := map[string]Label{}
	function := func(name string, emit func()) Label {
		g.Align(16)
		symbols[name] = g.Here()
		emit()
		return symbols[name]
	}
	function("__kp_slot", g.slot)
	function("__kp_current", g.current)
	record := function("__kp_record", g.record)
	function("__kp_copy", g.copy)
	function("__kp_copy_string", g.copyString)
	function("__kp_nanoseconds", g.nanoseconds)
	function("__kp_request", g.request)
	function("jprobe_return", g.jprobeReturn)
	function("dump_stack", func() { g.dumpStack(record) })
	abandon, abandonStart := g.entry(g.abandon), g.entry(g.abandonStart)
	starter := g.entry(g.starter)
	faulted := g.entry(func() { g.faulted(abandon, abandonStart, fromArgument) })
	pageFaulted := g.entry(func() { g.faulted(abandon, abandonStart, pageFault) })
	code, err := g.Finish()
	if err != nil {
		return nil, err
	}
	r := &KernelRuntime{Code: code, Symbols: map[string]uint64{}}
	r.Abandon, r.Starter, r.Faulted, r.PageFaulted = g.LabelAddr(abandon), g.LabelAddr(starter), g.LabelAddr(faulted), g.LabelAddr(pageFaulted)
	for name, l := range symbols {
		r.Symbols[name] = g.LabelAddr(l)
	}
	return r, nil
}

type kernelRuntime struct {
	slotRuntime
	e KernelRuntimeEnv
}

// entry emits code that is jumped to.
func (g *kernelRuntime) entry(emit func()) Label {
	g.Align(16)
	at := g.Here()
	g.Raw(endbr64...) // indirect branches may be tracked
	emit()
	return at
}

// find emits RAX = the slot of the handler that runs, and goes on at start, with the slot there, where it is none: a handler has interrupts off.
// It clobbers nothing else.
func (g *kernelRuntime) find(start Label) {
	handler := g.Label()
	g.Pushfq()
	g.Pop(RAX)
	g.TestRI(4, RAX, flagIF)
	g.Jcc(CondE, handler)
	g.MovRI(RAX, g.e.start())
	g.Jmp(start)
	g.Bind(handler)
	g.cpuSlot(RAX)
}

// cpuSlot emits the address of the CPU's slot, which a handler has, into a register.
func (g *kernelRuntime) cpuSlot(to Reg) {
	g.MovRM(4, to, AtGS(g.e.Kernel.CPU))
	g.ShiftRI(Shl, 8, to, slotShift)
	g.Lea(to, At(to, int32(g.e.Slots)))
}

func (g *kernelRuntime) slot() {
	start := g.Label()
	g.find(start)
	g.Bind(start)
	g.Ret()
}

// tgidBehindPID is how far tgid lies behind pid in struct task_struct (include/linux/sched.h).
const tgidBehindPID = 4

// current emits RAX = the task of the slot, filled in from that of the kernel.
func (g *kernelRuntime) current() {
	start, k := g.Label(), g.e.Kernel
	g.find(start)
	g.Bind(start)
	g.MovRM(8, RCX, AtGS(k.Current))
	g.Lea(R8, At(RAX, slotMM))
	g.MovRM(8, RDX, At(RCX, g.e.MM))
	g.TestRR(8, RDX, RDX)
	g.CmovRR(CondNE, 8, RDX, R8)
	g.MovMR(8, At(RAX, taskMM), RDX)
	for _, w := range [][2]int32{{k.PID, taskPID}, {k.PID + tgidBehindPID, taskTGID}} {
		g.MovRM(4, RDX, At(RCX, w[0]))
		g.MovMR(4, At(RAX, w[1]), RDX)
	}
	for i := range int32(2) {
		g.MovRM(8, RDX, At(RCX, k.Comm+8*i))
		g.MovMR(8, At(RAX, taskComm+8*i), RDX)
	}
	g.Lea(RAX, At(RAX, slotTask))
	g.Ret()
}

// record emits the writing of RSI words at RDI as a record of a kernel, by the locked protocol of package ring. A task that starts a module may be moved to
// another CPU meanwhile: any CPU may write to any shard.
func (g *kernelRuntime) record() {
	lost, copied := g.Label(), g.Label()
	g.MovRM(4, R8, AtGS(g.e.Kernel.CPU))
	g.ShiftRI(Shl, 8, R8, g.w.strideShift())
	g.MovRI(RAX, g.w.lockedShard(0))
	g.OpRR(OpAdd, 8, R8, RAX)
	g.Lea(R10, At(RSI, KernelRecord/8)) // units
	retry := g.Here()
	g.MovRM(8, RDX, At(R8, ring.ShTail))
	g.MovRM(8, RAX, At(R8, ring.ShHead))
	g.MovRR(8, R9, RAX)
	g.OpRR(OpSub, 8, R9, RDX)
	g.OpRR(OpAdd, 8, R9, R10)
	g.ShiftRI(Shl, 8, R9, 16)
	g.ShiftRI(Shr, 8, R9, 16)
	g.OpRI(OpCmp, 8, R9, g.w.lockedUnits())
	g.Jcc(CondA, lost)
	g.MovRI(RDX, 1<<48)
	g.OpRR(OpAdd, 8, RDX, R10)
	g.OpRR(OpAdd, 8, RDX, RAX)
	g.MovRR(8, R9, RAX)
	g.Lock().Cmpxchg(8, At(R8, ring.ShHead), RDX)
	g.Jcc(CondNE, retry)
	g.OpRI(OpAnd, 4, R9, g.w.units()-1)
	g.Lea(R9, AtIndex(R8, R9, 8, g.w.dataOff()))
	g.Rdtsc()
	g.MovMR(4, At(R9, 8), RAX)
	g.MovMR(4, At(R9, 12), RDX)
	g.OpRR(OpXor, 4, RCX, RCX)
	word := g.Here()
	g.OpRR(OpCmp, 8, RCX, RSI)
	g.Jcc(CondAE, copied)
	g.MovRM(8, RAX, AtIndex(RDI, RCX, 8, 0))
	g.MovMR(8, AtIndex(R9, RCX, 8, KernelRecord), RAX)
	g.IncR(8, RCX)
	g.Jmp(word)
	g.Bind(copied)
	g.context()
	g.MovRI(RDX, uint64(ring.Word0(0, g.e.Event)))
	g.OpRR(OpOr, 8, RAX, RDX)
	g.OpRR(OpOr, 8, RAX, R10)
	g.MovMR(8, At(R9, 0), RAX)
	g.Ret()
	g.Bind(lost)
	g.Lock().IncM(8, At(R8, counter(g.e.Event, ring.CtrLost)))
	g.Ret()
}

// context emits what a kernel's record at R9 has before its words, and RAX = the task's id in the place of the first word. It clobbers RDX.
func (g *kernelRuntime) context() {
	k := g.e.Kernel
	g.MovRM(4, RAX, AtGS(k.Preempt))
	if k.WidePreempt {
		g.OpRM(OpOr, 4, RAX, AtGS(k.Preempt+4)) // its highest bit is the only one
	}
	g.MovMR(4, At(R9, KernelPreempt), RAX)
	g.Pushfq()
	g.Pop(RAX)
	g.MovMR(4, At(R9, KernelFlags), RAX)
	g.MovRM(8, RDX, AtGS(k.Current))
	for i := range int32(2) {
		g.MovRM(8, RAX, At(RDX, k.Comm+8*i))
		g.MovMR(8, At(R9, KernelComm+8*i), RAX)
	}
	g.MovRM(4, RAX, At(RDX, k.PID))
	g.ShiftRI(Shl, 8, RAX, 32)
}

// bySpace emits the call of one function for an address of a user in RSI, and of another for one of the kernel's, on an aligned stack; without them
// it goes on at none. Nothing but a return address is on the stack before it. It clobbers RAX.
func (g *kernelRuntime) bySpace(user, kernel uint64, none Label) {
	low, done := g.Label(), g.Label()
	if user == 0 || kernel == 0 {
		g.Jmp(none)
		return
	}
	g.MovRI(RAX, g.e.Kernel.UserEnd)
	g.OpRR(OpCmp, 8, RSI, RAX)
	g.Jcc(CondB, low)
	g.CallAddr(kernel)
	g.Jmp(done)
	g.Bind(low)
	g.CallAddr(user)
	g.Bind(done)
}

// copy emits the copying of RDX bytes from RSI to RDI. RAX is how many were not: none or all. To a user's memory nothing is.
func (g *kernelRuntime) copy() {
	none := g.Label()
	g.Push(RDX)
	g.MovRI(RAX, g.e.Kernel.UserEnd)
	g.OpRR(OpCmp, 8, RDI, RAX)
	g.Jcc(CondB, none)
	g.bySpace(g.e.Kernel.ReadUser, g.e.Kernel.ReadKernel, none)
	g.Pop(RDX)
	g.TestRR(8, RAX, RAX)
	g.CmovRR(CondNE, 8, RAX, RDX)
	g.Ret()
	g.Bind(none)
	g.Pop(RAX)
	g.Ret()
}

// copyString emits the copying of a string of at most RDX - 1 bytes from RSI to RDI, with a zero byte behind it.
func (g *kernelRuntime) copyString() {
	bad := g.Label()
	g.Push(RDI)
	g.bySpace(g.e.Kernel.StringUser, g.e.Kernel.StringKernel, bad)
	g.TestRR(8, RAX, RAX)
	g.Jcc(CondLE, bad)
	g.Pop(RDI)
	g.DecR(8, RAX) // they count the zero byte
	g.Ret()
	g.Bind(bad)
	g.Pop(RDI)
	g.MovMI(1, At(RDI, 0), 0)
	g.MovRI(RAX, ^uint64(efault-1))
	g.Ret()
}

// jprobeReturn emits the end of a jprobe's function: the CPU goes on with the registers that it had. Where no handler runs it does nothing.
func (g *kernelRuntime) jprobeReturn() {
	start := g.Label()
	g.find(start)
	g.MovRR(8, RBX, RAX)
	g.MovRM(8, R12, At(RBX, slotDescAt))
	g.OpRR(OpXor, 4, RAX, RAX)
	g.JmpM(At(R12, slotDescAbandon))
	g.Bind(start)
	g.Ret()
}

// dumpStack emits the writing of a record of the callers of the probed function: what stands at the stack pointer, and by frame pointers, which few
// kernels have. What is read lies on the stack that the CPU is on.
func (g *kernelRuntime) dumpStack(record Label) {
	start, next, done := g.Label(), g.Label(), g.Label()
	const size = 8 * traceWords
	g.find(start)
	pt := func(n int32) Mem { return At(RAX, ptWord(n)) }
	g.Lea(RSP, At(RSP, -size))
	g.MovMI(8, At(RSP, 0), StackRecord)
	g.MovRM(8, RCX, pt(ptIP))
	g.MovMR(8, At(RSP, 8), RCX)
	g.MovRI(RSI, 2)
	g.MovRM(8, R8, pt(ptSP))
	g.MovRM(8, RDX, pt(ptWords[RBP]))
	g.sameStack(R8, done)
	g.MovRM(8, RCX, At(R8, 0))
	g.MovMR(8, AtIndex(RSP, RSI, 8, 0), RCX)
	g.IncR(8, RSI)
	g.Bind(next)
	g.OpRI(OpCmp, 8, RSI, traceWords)
	g.Jcc(CondAE, done)
	g.OpRR(OpCmp, 8, RDX, R8) // frames lie one above the other
	g.Jcc(CondB, done)
	g.TestRI(4, RDX, 7)
	g.Jcc(CondNE, done)
	g.Lea(R9, At(RDX, 8))
	g.sameStack(R9, done)
	g.MovRM(8, RCX, At(RDX, 8))
	g.MovRM(8, R9, At(RDX, 0))
	g.TestRR(8, RCX, RCX)
	g.Jcc(CondE, done)
	g.MovMR(8, AtIndex(RSP, RSI, 8, 0), RCX)
	g.IncR(8, RSI)
	g.Lea(R8, At(RDX, 16))
	g.MovRR(8, RDX, R9)
	g.Jmp(next)
	g.Bind(done)
	g.MovRR(8, RDI, RSP)
	g.Call(record)
	g.Lea(RSP, At(RSP, size))
	g.Bind(start)
	g.Ret()
}

// sameStack emits the check that an address is on the stack that the CPU is on. It clobbers RCX.
func (g *kernelRuntime) sameStack(at Reg, not Label) {
	g.MovRR(8, RCX, at)
	g.OpRR(OpXor, 8, RCX, RSP)
	g.ShiftRI(Shr, 8, RCX, stackShift)
	g.Jcc(CondNE, not)
}
