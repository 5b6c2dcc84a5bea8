package amd64

import "kprobes.dev/kprobes/internal/arch"

// A fault in a module's code is the kernel's to handle: it looks for the instruction in its table of exceptions, and there is none. A probe at the entry of the function that looks
// takes such a fault away from it. If the probe whose handler has faulted has a fault handler, that is called there, with the registers of the fault, which the kernel
// loads when its own function has returned. Else, and where the fault handler returns 0 or faults itself, the CPU is sent to the handler's end.
//
//	a handler faults ──► the kernel's function, its probe, faulted: the fault handler runs, interrupts off
//	                       1                 the kernel goes back to the handler, by the registers
//	                       0                 the kernel goes to abandon
//	                       it faults too     the kernel's function again, its probe, faulted: the kernel goes to failed, and on as where it returns 0

// fromArgument is the trap number of a function that is told it, as its second argument.
const fromArgument = -1

// pageFault is the trap number of a page fault.
const pageFault = 14

// faulted emits the gate of a function that looks up where a fault goes on: RDI is its struct pt_regs. trap is the number of its faults.
func (g *kernelRuntime) faulted(abandon, abandonStart Label, trap int64) {
	ours, next, failed, answered := g.Label(), g.Label(), g.Label(), g.Label()
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
	g.Lea(RAX, AtLabel(abandonStart, 0))
	g.TestMI(4, At(RDI, 8*ptFlags), flagIF) // handlers have interrupts off
	g.Jcc(CondNE, ours)
	g.faultHandler(abandon, failed, answered, trap)
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
	g.Bind(failed)
	g.Raw(endbr64...)
	g.cpuSlot(RBX)
	g.OpRR(OpXor, 4, RAX, RAX)
	g.Jmp(answered)
}

// faultHandler emits RAX = where the handler goes on in which something has faulted, whose registers RDI leads to: what the probe's fault handler says, or abandon. failed is
// where the kernel goes if the fault handler faults, and answered where it comes from there. R12 is lost.
func (g *kernelRuntime) faultHandler(abandon, failed, answered Label, trap int64) {
	give := g.Label()
	for _, r := range []Reg{RBX, RDX, RDI} {
		g.Push(r)
	}
	g.cpuSlot(RBX)
	g.Lea(RAX, AtLabel(abandon, 0))
	g.MovRM(8, R12, At(RBX, slotDescAt))
	g.OpMI(OpCmp, 8, At(R12, slotDescFault), 0)
	g.Jcc(CondE, give)
	g.Lea(RAX, AtLabel(failed, 0))
	g.MovRM(8, R11, At(RBX, slotRuns))
	g.OpMR(OpCmp, 8, At(RBX, slotFaultRun), R11)
	g.Jcc(CondE, give)
	g.MovMR(8, At(RBX, slotFaultRun), R11)
	g.MovMR(8, At(RBX, slotLast), RSP)
	if trap == fromArgument {
		g.MovRR(8, RDX, RSI)
	} else {
		g.MovRI(RDX, uint64(trap))
	}
	g.MovRR(8, RSI, RDI)
	g.MovRM(8, RDI, At(R12, slotDescOf))
	g.OpRI(OpAnd, 8, RSP, -16)
	g.CallM(At(R12, slotDescFault))
	g.Bind(answered)
	g.Cld()
	g.MovRM(8, RSP, At(RBX, slotLast))
	g.MovMI(8, At(RBX, slotFaultRun), 0)
	g.MovRM(8, RDI, At(RSP, 0))
	g.TestRR(4, RAX, RAX)
	g.Lea(RAX, AtLabel(abandon, 0))
	g.Jcc(CondE, give)
	g.MovRM(8, RAX, At(RDI, 8*ptIP))
	g.Bind(give)
	for _, r := range []Reg{RDI, RDX, RBX} {
		g.Pop(r)
	}
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
