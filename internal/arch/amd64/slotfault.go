package amd64

// A module's probe may have a fault handler (fault_handler of struct kprobe, Linux up to 5.13). It is called where something faults in another handler of the
// probe, on the thread and the stack of that one, with the registers that the handler had there, and the trap number. It changes these registers, and returns
// 1: the handler goes on with them. Or it returns 0, and the handler is abandoned, as where there is no fault handler, or where something
// faults in the fault handler itself.
//
//	the handler faults
//	  the resident handler finds the module's code in its table, and goes on at fault:
//	    trap number, instruction pointer ──► slot; the thread is to go on at called
//	called: the registers ──► stack, below the red zone; the fault handler runs
//	  0  ──► abandon
//	  1  ──► registers ──► thread, and it goes on in the handler
//
// So the fault handler runs in no signal handler: the signal's mask is the thread's own, and its stack is not used. All between called and its end may fault, since the
// stack may be what has faulted: that ends in abandon too.

// What a slot has for a fault, behind the module's struct (slotMM).
const (
	slotFaultRun = 136 // the number of the run whose fault handler runs
	slotFaultIP  = 144 // of the instruction that has faulted
	slotFaultNr  = 152 // its trap number
	slotLast     = 160 // seven words that are loaded last: see resume
)

// alignmentFlag is AC: accesses that are not aligned fault, and compilers make such.
const alignmentFlag int32 = 1 << 18

// faultRoom is what lies between a handler's red zone and the registers: what resume puts at the thread's new stack pointer overlaps none of these, where that is the
// old one.
const faultRoom = redZone + leaveBlock

// fault emits what a fault in a module's code leads to. The label is where the resident handler goes on, with the context in RDX, as a signal's handler.
func (g *slotRuntime) fault(abandon Label) Label {
	fault, found, give, called := g.Here(), g.Label(), g.Label(), g.Label()
	g.find(found)
	g.Bind(give)
	g.Lea(RCX, AtLabel(abandon, 0))
	g.MovMR(8, At(RDX, ucRIP), RCX)
	g.Ret()
	g.Bind(found)
	g.OpMI(OpCmp, 4, At(RAX, slotAtomic), 0) // a module's start has no fault handler
	g.Jcc(CondE, give)
	g.MovRM(8, R8, At(RAX, slotDescAt))
	g.OpMI(OpCmp, 8, At(R8, slotDescFault), 0)
	g.Jcc(CondE, give)
	g.MovRM(8, R9, At(RAX, slotRuns))
	g.OpMR(OpCmp, 8, At(RAX, slotFaultRun), R9) // it is the fault handler that has faulted
	g.Jcc(CondE, give)
	g.MovMR(8, At(RAX, slotFaultRun), R9)
	g.MovRM(8, R9, At(RDX, ucRIP))
	g.MovMR(8, At(RAX, slotFaultIP), R9)
	g.MovRM(8, R9, At(RDX, ucTrap))
	g.MovMR(8, At(RAX, slotFaultNr), R9)
	g.Lea(RCX, AtLabel(called, 0))
	g.MovMR(8, At(RDX, ucRIP), RCX)
	g.Ret()

	g.Align(16)
	g.Bind(called)
	g.called(abandon)
	g.reads(called, g.Here(), abandon)
	return fault
}

// ptPushed are the general registers of struct pt_regs, in the order in which they are pushed.
var ptPushed = []Reg{RDI, RSI, RDX, RCX, RAX, R8, R9, R10, R11, RBX, RBP, R12, R13, R14, R15}

// called emits the call of the fault handler, where the thread has all registers that it had at the fault but the instruction pointer, and its stack pointer.
func (g *slotRuntime) called(abandon Label) {
	found := g.Label()
	g.Lea(RSP, At(RSP, -faultRoom))
	g.PushI(userDS)
	g.Push(RSP) // becomes that of the fault
	g.Pushfq()
	g.PushI(userCS)
	g.PushI(0) // becomes the instruction pointer
	g.PushI(-1)
	for _, r := range ptPushed {
		g.Push(r)
	}
	g.Pushfq()
	g.OpMI(OpAnd, 4, At(RSP, 0), ^alignmentFlag)
	g.Popfq()
	g.Cld()
	g.find(found)
	g.Ud2() // fault has found it
	g.Bind(found)
	g.MovRR(8, RBX, RAX)
	g.MovRR(8, R13, RSP)
	g.Lea(RAX, At(R13, 8*(ptSS+1)+faultRoom))
	g.MovMR(8, At(R13, 8*ptSP), RAX)
	g.MovRM(8, RAX, At(RBX, slotFaultIP))
	g.MovMR(8, At(R13, 8*ptIP), RAX)
	g.Lea(RSP, At(RSP, -16*16))
	g.OpRI(OpAnd, 8, RSP, -16)
	g.MovRR(8, R14, RSP)
	for i := range int32(16) {
		g.xmm(0xf11, i, At(R14, 16*i))
	}
	g.MovRM(8, R12, At(RBX, slotDescAt))
	g.MovRM(8, RDI, At(R12, slotDescOf))
	g.MovRR(8, RSI, R13)
	g.MovRM(8, RDX, At(RBX, slotFaultNr))
	g.CallM(At(R12, slotDescFault))
	g.TestRR(4, RAX, RAX)
	g.Jcc(CondE, abandon)
	g.Cld()
	for i := range int32(16) {
		g.xmm(0xf10, i, At(R14, 16*i))
	}
	g.resume()
}

// resume emits the loading of the registers at R13, where RBX is the slot. What is loaded last goes by way of the slot, and then of the new stack, below its red zone.
func (g *slotRuntime) resume() {
	const changes = statusFlags | directionFlag | alignmentFlag // the others are the thread's
	last := []int32{ptWords[RAX], ptWords[R12], ptWords[R13], ptIP, ptFlags, ptSP, ptWords[RBX]}
	kept := func(i int) Mem { return At(RBX, slotLast+8*int32(i)) }
	g.MovMI(8, At(RBX, slotFaultRun), 0)
	for i, word := range last {
		g.MovRM(8, RAX, At(R13, 8*word))
		g.MovMR(8, kept(i), RAX)
	}
	for _, r := range ptPushed {
		if r != RAX && r != RBX && r != R12 && r != R13 {
			g.MovRM(8, r, At(R13, 8*ptWords[r]))
		}
	}
	g.Pushfq()
	g.Pop(RAX)
	g.OpRI(OpAnd, 4, RAX, ^int32(changes))
	g.MovRM(4, R12, kept(4))
	g.OpRI(OpAnd, 4, R12, changes)
	g.OpRR(OpOr, 8, R12, RAX)
	g.MovRM(8, RAX, kept(5))
	g.Lea(RSP, At(RAX, -faultRoom))
	g.MovMR(8, At(RSP, 48), RAX)
	g.MovMR(8, At(RSP, 40), R12)
	for i := range 4 {
		g.MovRM(8, RAX, kept(i))
		g.MovMR(8, At(RSP, 8*int32(i)), RAX)
	}
	g.MovMI(8, At(RSP, 32), userCS)
	g.MovMI(8, At(RSP, 56), userDS)
	g.MovRM(8, RBX, kept(6))
	g.Pop(RAX)
	g.Pop(R12)
	g.Pop(R13)
	g.Raw(0x48, 0xcf) // iretq
}
