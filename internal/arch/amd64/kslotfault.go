package amd64

import "kprobes.dev/kprobes/internal/arch"

// A fault in a module's code is the kernel's to handle: it looks for the instruction in its table of exceptions, and there is none. A probe at the entry of the function that looks
// takes such a fault away from it, and sends the CPU to the handler's end.

// faulted emits the gate of the function that looks up where a fault goes on: RDI is its struct pt_regs.
func (g *kernelRuntime) faulted(abandon, abandonStart Label) {
	ours, next := g.Label(), g.Label()
	g.MovRM(8, RCX, At(RDI, 8*ptIP))
	within := func(lo, hi uint64, no Label) {
		g.MovRI(R11, lo)
		g.OpRR(OpCmp, 8, RCX, R11)
		g.Jcc(CondB, no)
		g.MovRI(R11, hi)
		g.OpRR(OpCmp, 8, RCX, R11)
		g.Jcc(CondAE, no)
	}
	within(g.e.Modules.Start, g.e.Modules.End, next)
	g.Lea(RAX, AtLabel(abandon, 0))
	g.TestMI(4, At(RDI, 8*ptFlags), flagIF) // handlers have interrupts off
	g.Jcc(CondE, ours)
	g.Lea(RAX, AtLabel(abandonStart, 0))
	g.Jmp(ours)
	g.Bind(next)
	for _, r := range g.e.Reads {
		no := g.Label()
		within(r.Lo, r.Hi, no)
		g.MovRI(RAX, r.To)
		g.Jmp(ours)
		g.Bind(no)
	}
	g.MovRI(RAX, uint64(arch.ActionGo))
	g.JmpR(R13)
	g.Bind(ours)
	g.MovMR(8, At(RDI, 8*ptIP), RAX)
	g.Lea(RDX, AtIndex(RSP, RDX, 1, 0)) // the stack pointer at the entry
	g.MovRM(8, R12, At(RSP, GateR12))
	g.MovRM(8, R13, At(RSP, GateR13))
	g.MovRR(8, RSP, RDX)
	g.MovRI(RAX, 1)
	g.Ret()
}

// abandon emits the end of a handler in which something faulted. Its stack may be what faulted: nothing is put there.
func (g *kernelRuntime) abandon() {
	g.cpuSlot(RBX)
	g.MovRM(8, R12, At(RBX, slotDescAt))
	g.MovMI(4, At(R12, SlotDescOff), 1)
	g.Lock().IncM(4, At(R12, SlotDescFaults))
	g.OpRR(OpXor, 4, RAX, RAX)
	g.JmpM(At(R12, slotDescAbandon))
}
