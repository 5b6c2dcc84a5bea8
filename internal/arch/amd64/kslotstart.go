package amd64

import "kprobes.dev/kprobes/internal/arch"

// A module's start and end run on a task of the kernel's (arch.ThreadState and what follows it), in the middle of a system call that it has made: at the entry of a function for
// which interrupts and preemption are on. The task goes on when the module's function has returned. It waits for the tracer by looking, with
// interrupts on, for a bounded time.

// request emits RAX = the tracer's answer to RDI, RSI, RDX.
func (g *kernelRuntime) request() {
	start, look, answered, gone := g.Label(), g.Label(), g.Label(), g.Label()
	g.find(start)
	g.MovRI(RAX, ^uint64(-errDeadlock-1))
	g.Ret()
	g.Bind(start)
	g.Push(RBX)
	g.MovRI(RBX, g.e.Thread)
	g.OpMI(OpCmp, 4, g.word(arch.ThreadUnserved), 0)
	g.Jcc(CondNE, gone)
	for i, r := range []Reg{RDI, RSI, RDX} {
		g.MovMR(8, g.word(arch.ThreadAsked+8*int32(i)), r)
	}
	g.MovMI(4, g.word(arch.ThreadState), arch.ThreadAsks)
	g.now()
	g.MovRI(R8, g.e.Ticks)
	g.OpRR(OpAdd, 8, R8, RAX)
	g.Bind(look)
	g.OpMI(OpCmp, 4, g.word(arch.ThreadState), arch.ThreadAnswered)
	g.Jcc(CondE, answered)
	g.Pause()
	g.now()
	g.OpRR(OpSub, 8, RAX, R8)
	g.Jcc(CondS, look)
	g.MovRI(RAX, arch.ThreadAsks)
	g.MovRI(RCX, arch.ThreadRuns)
	g.Lock().Cmpxchg(4, g.word(arch.ThreadState), RCX)
	g.Jcc(CondNE, look) // just in time
	g.MovMI(4, g.word(arch.ThreadUnserved), 1)
	g.Bind(gone)
	g.MovRI(RAX, ^uint64(-errTimedOut-1))
	g.Pop(RBX)
	g.Ret()
	g.Bind(answered)
	g.MovRM(8, RAX, g.word(arch.ThreadAnswer))
	g.MovMI(4, g.word(arch.ThreadState), arch.ThreadRuns)
	g.Pop(RBX)
	g.Ret()
}

// now emits RAX = the time stamp counter; RDX is clobbered.
func (g *kernelRuntime) now() {
	g.Rdtsc()
	g.ShiftRI(Shl, 8, RDX, 32)
	g.OpRR(OpOr, 8, RAX, RDX)
}

// starterKept are the registers that are not in a frame, or that a C function which faults in the middle may have changed.
var starterKept = []Reg{RBX, RBP, RSI, RDI, R8, R9, R10, R12, R13, R14, R15}

// starter emits the gate on which the start or the end of a module runs, if one waits for a task and this one may take as long as that does.
func (g *kernelRuntime) starter() {
	out := g.Label()
	g.MovRI(R11, g.e.Thread)
	g.OpMI(OpCmp, 4, At(R11, arch.ThreadState), arch.ThreadWaits)
	g.Jcc(CondNE, out)
	g.Pushfq()
	g.Pop(RAX)
	g.TestRI(4, RAX, flagIF)
	g.Jcc(CondE, out)
	g.MovRM(4, RAX, AtGS(g.e.Kernel.Preempt))
	g.TestRI(4, RAX, 0x7fffffff) // the highest bit tells something else
	g.Jcc(CondNE, out)
	g.MovRI(RAX, arch.ThreadWaits)
	g.MovRI(RCX, arch.ThreadRuns)
	g.Lock().Cmpxchg(4, At(R11, arch.ThreadState), RCX)
	g.Jcc(CondNE, out)
	for _, r := range starterKept {
		g.Push(r)
	}
	g.MovRI(RAX, g.e.start())
	g.MovMR(8, At(RAX, slotFrameAt), RSP)
	g.OpRI(OpAnd, 8, RSP, -16)
	g.Cld()
	g.CallM(At(R11, arch.ThreadFunc))
	g.MovRI(RCX, g.e.start())
	g.MovRM(8, RSP, At(RCX, slotFrameAt))
	g.Bind(g.ended)
	g.MovRI(R11, g.e.Thread)
	g.MovSXR(4, RAX, RAX)
	g.MovMR(8, At(R11, arch.ThreadResult), RAX)
	for i := len(starterKept) - 1; i >= 0; i-- {
		g.Pop(starterKept[i])
	}
	g.MovMI(4, At(R11, arch.ThreadState), arch.ThreadEnded)
	g.Bind(out)
	g.MovRI(RAX, uint64(arch.ActionGo))
	g.JmpR(R13)
}

// abandonStart emits that of a module's start or end.
func (g *kernelRuntime) abandonStart() {
	g.MovRI(RCX, g.e.start())
	g.MovRM(8, RSP, At(RCX, slotFrameAt))
	g.Cld()
	g.MovRI(RAX, ^uint64(efault-1))
	g.Jmp(g.ended)
}
