package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// SlotRuntimeEnv says what the functions know that handlers in line call.
type SlotRuntimeEnv struct {
	SlotGateEnv
	Event int    // the number that lines of the log have in the ring
	Clock uint64 // address of three words: a count of the processor's counter, the nanoseconds then, and those of a tick with 32 bits behind the point
	Quiet uint64 // CodegenEnv.Quiet
	// Thread is the address of the words of the thread on which modules start and end (arch.ThreadState), and Patience how long it waits for the
	// tracer, in seconds.
	Thread   uint64
	Patience uint64
}

// SlotRuntime is the code of those functions (linux/kp_runtime.h has their contracts).
type SlotRuntime struct {
	Code    []byte
	Symbols map[string]uint64
	Faults  []FaultEntry // of reads that may fault
	// Abandon is where a thread is sent that is to leave its handler: the handler is not called any more, and the thread goes on as if it
	// had returned 0. The thread on which a module starts or ends is done then, with EFAULT.
	Abandon uint64
	// Fault is To of the table's entries of modules' code, which are Called.
	Fault uint64
	// Start is where that thread begins, at the end of its stack.
	Start uint64
}

// The task of a slot, struct task_struct of linux/kp_runtime.h.
const (
	slotTask   = 8
	taskPID    = slotTask
	taskTGID   = slotTask + 4
	taskComm   = slotTask + 8
	taskMM     = slotTask + 24 // two of them
	taskLeader = slotTask + 40 // three tasks: the leader and two parents
	slotMM     = 128
)

const efault = 14

// NewSlotRuntime generates the functions at addr.
func NewSlotRuntime(addr uint64, env SlotRuntimeEnv, w *arch.CodegenEnv) (*SlotRuntime, error) {
	g := &slotRuntime{slotGate: slotGate{Asm: NewAsm(addr), env: env.SlotGateEnv}, e: env, w: writer{w}}
	g.out = &emitter{Asm: g.Asm, w: g.w}
	g.patience, g.ended, g.lost = g.Label(), g.Label(), g.Label()
	symbols := map[string]Label{}
	function := func(name string, emit func()) {
		g.Align(16)
		symbols[name] = g.Here()
		emit()
	}
	function("__kp_slot", g.slot)
	function("__kp_current", func() { g.current(symbols["__kp_slot"]) })
	function("__kp_record", g.record)
	function("__kp_copy", g.copy)
	function("__kp_copy_string", g.copyString)
	function("__kp_nanoseconds", g.nanoseconds)
	function("__kp_request", g.request)
	function("jprobe_return", g.jprobeReturn)
	function("dump_stack", func() { g.dumpStack(symbols["__kp_record"]) })
	g.Align(16)
	abandon := g.Here()
	g.abandon()
	g.Align(16)
	fault := g.fault(abandon)
	g.Align(16)
	start := g.Here()
	g.start()
	code, err := g.Finish()
	if err != nil {
		return nil, err
	}
	r := &SlotRuntime{Code: code, Symbols: map[string]uint64{}, Abandon: g.LabelAddr(abandon), Fault: g.LabelAddr(fault), Start: g.LabelAddr(start)}
	for name, l := range symbols {
		r.Symbols[name] = g.LabelAddr(l)
	}
	r.Faults = []FaultEntry{{Lo: r.Abandon, Hi: r.Abandon + 1, To: r.Abandon}} // a thread was sent there that had faulted before, and whose signal comes now
	for _, f := range g.faults {
		r.Faults = append(r.Faults, FaultEntry{Lo: g.LabelAddr(f[0]), Hi: g.LabelAddr(f[1]), To: g.LabelAddr(f[2])})
	}
	return r, nil
}

type slotRuntime struct {
	slotGate
	e      SlotRuntimeEnv
	w      writer
	faults [][3]Label // from, up to, and where to

	out      *emitter // writes records
	patience Label    // how long the thread waits
	ended    Label    // R12 is its slot, EAX what its function has returned
	lost     Label    // a record found no room in the shard of R8
}

// slot emits RAX = the thread's slot; 0: it has none. Handlers call it for each variable of a CPU. The gate leaves the slot in RBX, where it often still
// is: then nothing waits for its address to be computed. It is short, too, where the key is the first of its group.
func (g *slotRuntime) slot() {
	found, search, other := g.Label(), g.Label(), g.Label()
	g.minus(R11, RBX, g.env.Slots)
	g.OpRI(OpCmp, 8, R11, int32(SlotSize*8<<g.env.Groups))
	g.Jcc(CondAE, search)
	g.TestRI(4, R11, SlotSize-1)
	g.Jcc(CondNE, search)
	g.rdfsbase(RCX)
	g.ShiftRI(Shr, 8, R11, 7)
	g.plus(R11, g.env.Keys)
	g.OpMR(OpCmp, 8, At(R11, 0), RCX)
	g.Jcc(CondNE, search)
	g.MovRR(8, RAX, RBX)
	g.Ret()
	g.Bind(search)
	g.rdfsbase(RCX)
	g.group(R11, RCX)
	g.OpMR(OpCmp, 8, At(R11, 0), RCX)
	g.Jcc(CondNE, other)
	g.slotOf(RCX, R11)
	g.MovRR(8, RAX, RCX)
	g.Ret()
	g.Bind(other)
	g.find(found)
	g.OpRR(OpXor, 4, RAX, RAX)
	g.Bind(found)
	g.Ret()
}

// current emits RAX = the task of the thread's slot. Where no system call may be made its numbers are those of before.
func (g *slotRuntime) current(slot Label) {
	quiet := g.Label()
	g.Push(RBX)
	g.Call(slot)
	g.MovRR(8, RBX, RAX)
	if g.e.Quiet != 0 {
		g.MovRI(RCX, g.e.Quiet)
		g.OpMI(OpCmp, 8, At(RCX, 0), 0)
		g.Jcc(CondNE, quiet)
	}
	g.MovRI(RAX, sysGettid)
	g.Syscall()
	g.MovMR(4, At(RBX, taskPID), RAX)
	g.MovRI(RAX, sysGetpid)
	g.Syscall()
	g.MovMR(4, At(RBX, taskTGID), RAX)
	g.MovRI(RDI, prGetName)
	g.Lea(RSI, At(RBX, taskComm))
	g.MovRI(RAX, sysPrctl)
	g.Syscall()
	g.Bind(quiet)
	g.Lea(RAX, At(RBX, slotTask))
	g.Pop(RBX)
	g.Ret()
}

// record emits the writing of RSI words at RDI as a record, by the protocols of package ring, as detours write theirs.
func (g *slotRuntime) record() {
	slow, full := g.Label(), g.Label()
	if g.w.HasRseq {
		g.out.sequence(slow, func() {
			g.shard(g.w.Ring + g.w.Layout.ShardOff(0))
			g.MovRM(8, RDX, At(R8, ring.ShTail))
			g.MovRM(8, R9, At(R8, ring.ShHead))
			g.Lea(RAX, AtIndex(R9, R10, 1, 0))
			g.OpRR(OpSub, 8, RAX, RDX)
			g.OpRI(OpCmp, 8, RAX, g.w.units())
			g.Jcc(CondA, full)
			g.MovRR(4, R11, R9)
			g.words()
			g.ownTID()
			g.firstWord()
			g.OpRR(OpAdd, 8, R9, R10)
			g.MovMR(8, At(R8, ring.ShHead), R9)
		})
		g.Ret()
		g.out.after(func() {
			g.Bind(full)
			g.out.endSequence()
			g.Jmp(g.lost)
		})
	}
	g.Bind(slow)
	g.locked()
	g.out.rest()
}

// shard emits R8 = the shard of the CPU in RAX, of which the first lies at an address, and R10 = the units of the record. It clobbers RAX.
func (g *slotRuntime) shard(first uint64) {
	g.ShiftRI(Shl, 8, RAX, g.w.strideShift())
	g.MovRI(R8, first)
	g.OpRR(OpAdd, 8, R8, RAX)
	g.Lea(R10, At(RSI, g.header()/8))
}

// header is how many bytes of a record come before its words.
func (g *slotRuntime) header() int32 {
	if g.w.Go != nil {
		return ring.RecHeader + 8 // the goroutine, which is not asked for
	}
	return ring.RecHeader
}

// words emits R11 = the memory of the record at position R11 in the shard of R8, and fills it, but for the first word. It clobbers RAX, RCX and RDX.
func (g *slotRuntime) words() {
	copied := g.Label()
	g.OpRI(OpAnd, 4, R11, g.w.units()-1)
	g.Lea(R11, AtIndex(R8, R11, 8, g.w.dataOff()))
	g.Rdtsc()
	g.ShiftRI(Shl, 8, RDX, 32)
	g.OpRR(OpOr, 8, RAX, RDX)
	g.MovMR(8, At(R11, 8), RAX)
	if g.w.Go != nil {
		g.MovMI(8, At(R11, ring.RecHeader), 0)
	}
	g.OpRR(OpXor, 4, RCX, RCX)
	word := g.Here()
	g.OpRR(OpCmp, 8, RCX, RSI)
	g.Jcc(CondAE, copied)
	g.MovRM(8, RAX, AtIndex(RDI, RCX, 8, 0))
	g.MovMR(8, AtIndex(R11, RCX, 8, g.header()), RAX)
	g.IncR(8, RCX)
	g.Jmp(word)
	g.Bind(copied)
}

// ownTID emits EAX = the thread's id, or 0 where no code can read it. FS leads to the thread's own block.
func (g *slotRuntime) ownTID() {
	if !g.loadTID(g.w.CodegenEnv) {
		g.OpRR(OpXor, 4, RAX, RAX)
	}
}

// firstWord emits the first word of the record at R11, with the thread's id in EAX.
func (g *slotRuntime) firstWord() {
	g.ShiftRI(Shl, 8, RAX, 32)
	g.MovRI(RDX, uint64(ring.Word0(0, g.e.Event)))
	g.OpRR(OpOr, 8, RAX, RDX)
	g.OpRR(OpOr, 8, RAX, R10)
	g.MovMR(8, At(R11, 0), RAX)
}

// locked emits the rest of record by the locked protocol.
func (g *slotRuntime) locked() {
	other, have := g.Label(), g.Label()
	g.out.cpu(true)
	g.shard(g.w.lockedShard(0))
	retry := g.Here()
	g.MovRM(8, RDX, At(R8, ring.ShTail))
	g.MovRM(8, RAX, At(R8, ring.ShHead))
	g.MovRR(8, R9, RAX)
	g.OpRR(OpSub, 8, R9, RDX)
	g.OpRR(OpAdd, 8, R9, R10)
	g.ShiftRI(Shl, 8, R9, 16)
	g.ShiftRI(Shr, 8, R9, 16)
	g.OpRI(OpCmp, 8, R9, g.w.lockedUnits())
	g.Jcc(CondA, g.lost)
	g.MovRI(RDX, 1<<48)
	g.OpRR(OpAdd, 8, RDX, R10)
	g.OpRR(OpAdd, 8, RDX, RAX)
	g.MovRR(4, R11, RAX)
	g.Lock().Cmpxchg(8, At(R8, ring.ShHead), RDX)
	g.Jcc(CondNE, retry)
	g.words()
	g.out.ownBlock(other)
	g.ownTID()
	g.Jmp(have)
	g.Bind(other)
	g.OpRR(OpXor, 4, RAX, RAX)
	g.Bind(have)
	g.firstWord()
	g.Ret()
	g.Bind(g.lost)
	g.Lock().IncM(8, At(R8, counter(g.e.Event, ring.CtrLost)))
	g.Ret()
}

// reads notes that what lies between two labels may fault, and goes on at a third one then.
func (g *slotRuntime) reads(from, upTo, to Label) {
	g.faults = append(g.faults, [3]Label{from, upTo, to})
}

// copy emits the copying of RDX bytes from RSI to RDI. RAX is how many were not.
func (g *slotRuntime) copy() {
	g.MovRR(8, RCX, RDX)
	at := g.Here()
	g.Raw(0xf3, 0xa4) // rep movsb
	end := g.Here()
	g.reads(at, end, end)
	g.MovRR(8, RAX, RCX)
	g.Ret()
}

// copyString emits the copying of a string of at most RDX - 1 bytes from RSI to RDI, with a zero byte behind it.
func (g *slotRuntime) copyString() {
	cut, done, bad := g.Label(), g.Label(), g.Label()
	g.Lea(R9, At(RDX, -1))
	g.OpRR(OpXor, 4, RAX, RAX)
	next := g.Here()
	g.OpRR(OpCmp, 8, RAX, R9)
	g.Jcc(CondAE, cut)
	at := g.Here()
	g.MovZXM(1, RCX, AtIndex(RSI, RAX, 1, 0))
	end := g.Here()
	g.reads(at, end, bad)
	g.MovMR(1, AtIndex(RDI, RAX, 1, 0), RCX)
	g.TestRR(4, RCX, RCX)
	g.Jcc(CondE, done)
	g.IncR(8, RAX)
	g.Jmp(next)
	g.Bind(cut)
	g.MovMI(1, AtIndex(RDI, RAX, 1, 0), 0)
	g.Bind(done)
	g.Ret()
	g.Bind(bad)
	g.MovMI(1, At(RDI, 0), 0)
	g.MovRI(RAX, ^uint64(efault-1))
	g.Ret()
}

// nanoseconds emits RAX = the time.
func (g *slotRuntime) nanoseconds() {
	g.Rdtsc()
	g.ShiftRI(Shl, 8, RDX, 32)
	g.OpRR(OpOr, 8, RAX, RDX)
	g.MovRI(R8, g.e.Clock)
	g.OpRM(OpSub, 8, RAX, At(R8, 0))
	g.MovRM(8, RCX, At(R8, 16))
	g.Raw(0x48, 0xf7, 0xe1)             // mul %rcx
	g.Raw(0x48, 0x0f, 0xac, 0xd0, 0x20) // shrd $32, %rdx, %rax
	g.OpRM(OpAdd, 8, RAX, At(R8, 8))
	g.Ret()
}

// abandon emits the end of a handler in which something faulted. Its stack may be what faulted: nothing is put there, but below the detour's frame.
func (g *slotRuntime) abandon() {
	found, thread := g.Label(), g.Label()
	g.find(found)
	g.Ud2() // it was no handler
	g.Bind(found)
	g.OpMI(OpCmp, 4, At(RAX, slotAtomic), 0)
	g.Jcc(CondE, thread)
	g.MovRR(8, RBX, RAX)
	g.MovRM(8, R12, At(RBX, slotDescAt))
	g.MovMI(4, At(R12, SlotDescOff), 1)
	g.Lock().IncM(4, At(R12, SlotDescFaults))
	g.MovRM(8, RSP, At(RBX, slotFrameAt))
	g.Pushfq()
	g.OpMI(OpAnd, 4, At(RSP, 0), ^alignmentFlag)
	g.MovRM(8, RCX, At(RBX, ptWord(ptFlags)))
	g.OpRI(OpAnd, 8, RCX, alignmentFlag)
	g.OpMR(OpOr, 8, At(RSP, 0), RCX)
	g.Popfq()
	g.OpRR(OpXor, 4, RAX, RAX)
	g.JmpM(At(R12, slotDescAbandon))
	g.Bind(thread)
	g.Cld()
	g.MovRR(8, R12, RAX)
	g.MovRM(8, RSP, At(R12, slotFrameAt))
	g.MovRI(RBX, g.e.Thread)
	g.MovRI(RAX, ^uint64(efault-1))
	g.Jmp(g.ended)
}

// jprobeReturn emits the end of a jprobe's function: the thread goes on with the registers that it had. Where no handler runs it does nothing.
func (g *slotRuntime) jprobeReturn() {
	found, none := g.Label(), g.Label()
	g.find(found)
	g.Bind(none)
	g.Ret()
	g.Bind(found)
	g.OpMI(OpCmp, 4, At(RAX, slotAtomic), 0)
	g.Jcc(CondE, none)
	g.MovRR(8, RBX, RAX)
	g.MovRM(8, R12, At(RBX, slotDescAt))
	g.OpRR(OpXor, 4, RAX, RAX)
	g.JmpM(At(R12, slotDescAbandon))
}
