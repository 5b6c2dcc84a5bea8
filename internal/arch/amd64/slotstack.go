package amd64

// StackRecord begins a record of dump_stack, where printk's have the address of a format: the instruction and its callers follow.
const StackRecord = 2

// traceWords is how many words such a record has at most.
const traceWords = 18

// dumpStack emits the writing of a record of the callers of the probed function: what stands at the stack pointer, and by frame pointers. In the start and the end of a
// module there are none.
func (g *slotRuntime) dumpStack(record Label) {
	found, none, next, done := g.Label(), g.Label(), g.Label(), g.Label()
	const size = 8 * traceWords
	g.find(found)
	g.Bind(none)
	g.Ret()
	g.Bind(found)
	g.OpMI(OpCmp, 4, At(RAX, slotAtomic), 0)
	g.Jcc(CondE, none)
	pt := func(n int32) Mem { return At(RAX, ptWord(n)) }
	g.Lea(RSP, At(RSP, -size))
	g.MovMI(8, At(RSP, 0), StackRecord)
	g.MovRM(8, RCX, At(RAX, slotDescAt))
	g.MovRM(8, RCX, At(RCX, slotDescIP))
	g.MovMR(8, At(RSP, 8), RCX)
	g.MovRI(RSI, 2)
	g.MovRM(8, R8, pt(ptSP))
	g.MovRM(8, RDX, pt(ptWords[RBP]))
	at := g.Here()
	g.MovRM(8, RCX, At(R8, 0))
	g.reads(at, g.Here(), done)
	g.MovMR(8, AtIndex(RSP, RSI, 8, 0), RCX)
	g.IncR(8, RSI)
	g.Bind(next)
	g.OpRI(OpCmp, 8, RSI, traceWords)
	g.Jcc(CondAE, done)
	g.OpRR(OpCmp, 8, RDX, R8) // frames lie one above the other
	g.Jcc(CondB, done)
	at = g.Here()
	g.MovRM(8, RCX, At(RDX, 8))
	g.MovRM(8, R9, At(RDX, 0))
	g.reads(at, g.Here(), done)
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
	g.Ret()
}

// find emits RAX = the thread's slot, and goes on at found, if it has one.
func (g *slotRuntime) find(found Label) {
	none, own := g.Label(), g.Label()
	g.rdfsbase(RCX)
	g.group(R11, RCX)
	next := g.Here()
	g.OpMR(OpCmp, 8, At(R11, 0), RCX)
	g.Jcc(CondE, own)
	g.Lea(R11, At(R11, 8))
	g.TestRI(4, R11, 63)
	g.Jcc(CondNE, next)
	g.Jmp(none)
	g.Bind(own)
	g.slotOf(RCX, R11)
	g.MovRR(8, RAX, RCX)
	g.Jmp(found)
	g.Bind(none)
}
