package amd64

// oldHandler emits R8 = the handler that was there before ours for the signal in EDI.
func (h *handlerCode) oldHandler() {
	h.MovRR(4, RCX, RDI)
	h.ImulRRI(8, RCX, RCX, h.env.ActionSize)
	h.MovRI(R8, h.env.Actions)
	h.OpRR(OpAdd, 8, RCX, R8)
	h.MovRM(8, R8, At(RCX, h.env.ActionHandler))
}

// chain emits the handing on of a signal to the disposition that was there before.
func (h *handlerCode) chain() {
	dflt := h.Label()
	h.oldHandler()
	h.OpRI(OpCmp, 8, R8, 1)
	h.Jcc(CondBE, dflt)
	once := h.Label()
	h.OpMI(OpCmp, 4, At(RCX, h.env.ActionHandler+8), 0) // SA_RESETHAND is the sign bit of the flags
	h.Jcc(CondS, once)
	h.JmpR(R8)
	h.Bind(once) // the program's handler serves once: from now on the default does
	h.MovMI(8, At(RCX, h.env.ActionHandler), 0)
	h.JmpR(R8)
	h.Bind(dflt)
	h.byDefault()
}

// byDefault emits the default action: the disposition is put back, and the fault
// happens again when the handler returns; a signal that somebody sent is sent again.
// RCX is the saved disposition.
func (h *handlerCode) byDefault() {
	out := h.Label()
	h.Push(RBX)
	h.Push(RBP)
	h.Push(R12)
	h.MovRR(4, RBX, RDI)
	h.MovRR(8, RBP, RSI)
	h.MovRR(8, R12, R8)
	resend := h.Label()
	h.OpRI(OpCmp, 4, RDI, sigTrap) // the instruction pointer is past it: it would not happen again
	h.Jcc(CondE, resend)
	h.OpMI(OpCmp, 4, At(RSI, infoCode), 0)
	h.Jcc(CondLE, resend)
	h.setDefault()
	h.Jmp(out)
	h.Bind(resend)
	h.OpRI(OpCmp, 8, R12, 1) // ignored, and not a fault: nothing is to be done
	h.Jcc(CondE, out)
	h.setDefault()
	h.queueAgain()
	h.Bind(out)
	h.Pop(R12)
	h.Pop(RBP)
	h.Pop(RBX)
	h.Ret()
}

// setDefault emits rt_sigaction(EBX, {SIG_DFL}, NULL, 8), from the stack.
func (h *handlerCode) setDefault() {
	h.Lea(RSP, At(RSP, -32))
	for i := int32(0); i < 32; i += 8 {
		h.MovMI(8, At(RSP, i), 0)
	}
	h.MovRR(4, RDI, RBX)
	h.MovRR(8, RSI, RSP)
	h.MovRI(RDX, 0)
	h.MovRI(R10, 8)
	h.MovRI(RAX, sysRtSigaction)
	h.Syscall()
	h.Lea(RSP, At(RSP, 32))
}

// queueAgain emits rt_tgsigqueueinfo(getpid(), gettid(), EBX, RBP).
func (h *handlerCode) queueAgain() {
	h.MovRI(RAX, sysGetpid)
	h.Syscall()
	h.MovRR(4, RDI, RAX)
	h.MovRI(RAX, sysGettid)
	h.Syscall()
	h.MovRR(4, RSI, RAX)
	h.MovRR(4, RDX, RBX)
	h.MovRR(8, R10, RBP)
	h.MovRI(RAX, sysRtTgsigqueueinf)
	h.Syscall()
}

// mapBack emits what runs when the program's handler returned after a fault in a
// displaced instruction: if it goes on at an instruction that has a copy, it goes on
// in the copy. The stack pointer is at the signal frame's ucontext, or what was called has
// returned here (called).
func (h *handlerCode) mapBack() {
	h.Bind(h.back)
	h.mapTo(RSP)
	h.sigreturn()
	h.Bind(h.called)
	h.Push(RDX)
	h.Call(h.pass)
	h.Pop(RDX)
	h.mapTo(RDX)
	h.Ret()
}

// mapTo emits the search for the copy of the instruction at which a struct ucontext goes on.
func (h *handlerCode) mapTo(context Reg) {
	loop, done, next := h.Label(), h.Label(), h.Label()
	h.table()
	h.MovRM(8, RAX, At(context, ucRIP))
	h.Bind(loop)
	h.TestRR(8, RCX, RCX)
	h.Jcc(CondE, done)
	h.OpMI(OpCmp, 8, At(R9, 24), 0)
	h.Jcc(CondE, next)
	h.OpMR(OpCmp, 8, At(R9, 16), RAX)
	h.Jcc(CondNE, next)
	h.MovRM(8, RAX, At(R9, 0))
	h.MovMR(8, At(context, ucRIP), RAX)
	h.Jmp(done)
	h.Bind(next)
	h.Lea(R9, At(R9, FaultEntrySize))
	h.OpRI(OpSub, 8, RCX, 1)
	h.Jmp(loop)
	h.Bind(done)
}
