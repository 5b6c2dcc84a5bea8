package amd64

import (
	"encoding/binary"

	"kprobes.dev/kprobes/internal/arch"
)

// The start and the end of a module run on a thread of our own (arch.ThreadState and what follows it), which has a slot as handlers do.
// It is made by clone(2) with a stack, an FS base and no signal mask of its own, and begins at SlotRuntime.Start.

// synchronous are SIGILL, SIGTRAP, SIGBUS, SIGFPE and SIGSEGV, which an instruction causes: who blocks one of them is killed by it.
const synchronous = 1<<(4-1) | 1<<(5-1) | 1<<(7-1) | 1<<(8-1) | 1<<(11-1)

const (
	sysSchedYield = 24
	sysExit       = 60

	sigSetmask = 2

	futexWait = 0

	errDeadlock = -35
	errTimedOut = -110
)

func (g *slotRuntime) word(off int32) Mem { return At(RBX, off) }

// futexOn emits futex(2) on the thread's state: what the kernel returns stands in RAX.
func (g *slotRuntime) futexOn(op, value uint64, patience *Label) {
	g.MovRR(8, RDI, RBX)
	g.MovRI(RSI, op)
	g.MovRI(RDX, value)
	g.OpRR(OpXor, 4, R10, R10)
	if patience != nil {
		g.Lea(R10, AtLabel(*patience, 0))
	}
	g.MovRI(RAX, sysFutex)
	g.Syscall()
}

// become emits the storing of a state, and wakes the tracer.
func (g *slotRuntime) become(state int32) {
	g.MovMI(4, g.word(arch.ThreadState), state)
	g.futexOn(futexWake, 1, nil)
}

// await emits the wait for a state that the tracer makes of another. Where it does not come in time the thread makes a third one of the
// first, and goes on at late.
func (g *slotRuntime) await(from, to, third int32, late Label) {
	come, look := g.Label(), g.Here()
	g.OpMI(OpCmp, 4, g.word(arch.ThreadState), to)
	g.Jcc(CondE, come)
	g.futexOn(futexWait, uint64(from), &g.patience)
	g.OpRI(OpCmp, 8, RAX, errTimedOut)
	g.Jcc(CondNE, look)
	g.MovRI(RAX, uint64(from))
	g.MovRI(RCX, uint64(third))
	g.Lock().Cmpxchg(4, g.word(arch.ThreadState), RCX)
	g.Jcc(CondNE, look)
	g.Jmp(late)
	g.Bind(come)
}

// request emits RAX = the tracer's answer to RDI, RSI, RDX.
func (g *slotRuntime) request() {
	found, handler, late, out := g.Label(), g.Label(), g.Label(), g.Label()
	g.Push(RBX)
	g.find(found)
	g.Jmp(handler)
	g.Bind(found)
	g.OpMI(OpCmp, 4, At(RAX, slotAtomic), 0)
	g.Jcc(CondNE, handler)
	g.MovRI(RBX, g.e.Thread)
	for i, r := range []Reg{RDI, RSI, RDX} {
		g.MovMR(8, g.word(arch.ThreadAsked+8*int32(i)), r)
	}
	g.become(arch.ThreadAsks)
	g.await(arch.ThreadAsks, arch.ThreadAnswered, arch.ThreadRuns, late)
	g.MovRM(8, RAX, g.word(arch.ThreadAnswer))
	g.MovMI(4, g.word(arch.ThreadState), arch.ThreadRuns)
	g.Bind(out)
	g.Pop(RBX)
	g.Ret()
	g.Bind(late)
	g.MovRI(RAX, ^uint64(-errTimedOut-1))
	g.Jmp(out)
	g.Bind(handler)
	g.MovRI(RAX, ^uint64(-errDeadlock-1))
	g.Jmp(out)
}

// start emits what the thread does from its first instruction to its last.
func (g *slotRuntime) start() {
	mask, gone := g.Label(), g.Label()
	g.MovRI(RBX, g.e.Thread)
	g.MovRI(RDI, sigSetmask)
	g.Lea(RSI, AtLabel(mask, 0))
	g.OpRR(OpXor, 4, RDX, RDX)
	g.MovRI(R10, 8)
	g.MovRI(RAX, sysRtSigprocmask)
	g.Syscall()
	g.await(arch.ThreadWaits, arch.ThreadRuns, arch.ThreadEnded, gone)
	g.OpMI(OpCmp, 8, g.word(arch.ThreadFunc), 0)
	g.Jcc(CondE, gone)
	g.ownSlot()
	g.OpRI(OpAnd, 8, RSP, -16)
	g.MovMR(8, At(R12, slotFrameAt), RSP)
	g.CallM(g.word(arch.ThreadFunc))
	g.Bind(g.ended)
	g.MovMI(4, At(R12, slotAtomic), 1)
	g.MovSXR(4, RAX, RAX)
	g.MovMR(8, g.word(arch.ThreadResult), RAX)
	g.keyOf(R11, R12)
	g.MovMI(8, At(R11, 0), 0)
	g.become(arch.ThreadEnded)
	g.Bind(gone)
	g.OpRR(OpXor, 4, RDI, RDI)
	g.MovRI(RAX, sysExit)
	g.Syscall()
	g.Ud2()
	g.Align(8)
	g.Bind(mask)
	g.Data64(^uint64(synchronous))
	g.Bind(g.patience) // struct timespec
	g.Data64(g.e.Patience)
	g.Data64(0)
}

// PutThreadBlock prepares the memory that a module's thread has its FS base for, which begins off bytes into page and lies at addr: it begins with its own address, as the
// C library's does, and its area for restartable sequences says that the kernel knows none. false: that area is not in the page, and nothing that the thread runs may look
// for it.
func PutThreadBlock(page []byte, off int, addr uint64, w *arch.CodegenEnv) bool {
	binary.LittleEndian.PutUint64(page[off:], addr)
	if !w.HasRseq {
		return true
	}
	at := off + int(w.RseqOff) + rseqCPU
	if at < 0 || at+4 > len(page) || at < off+8 && at+4 > off {
		return false
	}
	unregistered := int32(rseqUnregistered)
	binary.LittleEndian.PutUint32(page[at:], uint32(unregistered))
	return true
}

// ownSlot emits R12 = a slot, which is the thread's until it ends.
func (g *slotRuntime) ownSlot() {
	got := g.Label()
	g.rdfsbase(R12)
	again := g.Here()
	g.group(R11, R12)
	try, next := g.Here(), g.Label()
	g.OpRR(OpXor, 4, RAX, RAX)
	g.OpMR(OpCmp, 8, At(R11, 0), RAX)
	g.Jcc(CondNE, next)
	g.Lock().Cmpxchg(8, At(R11, 0), R12)
	g.Jcc(CondE, got)
	g.Bind(next)
	g.Lea(R11, At(R11, 8))
	g.TestRI(4, R11, 63)
	g.Jcc(CondNE, try)
	g.MovRI(RAX, sysSchedYield) // handlers run in all of them, and end soon
	g.Syscall()
	g.Jmp(again)
	g.Bind(got)
	g.slotOf(R12, R11)
	g.MovMI(4, At(R12, slotAtomic), 0)
}
