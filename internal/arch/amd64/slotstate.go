package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
)

// save emits the filling of the slot in RCX.
func (g *slotGate) save() {
	g.MovMR(8, At(RCX, slotFrameAt), RSP)
	g.MovMR(8, At(RCX, slotBackTo), R13)
	g.MovMR(8, At(RCX, slotDescAt), R12)
	g.IncM(8, At(RCX, slotRuns))
	for _, r := range keptRegs {
		g.MovMR(8, At(RCX, ptWord(ptWords[r])), r)
	}
	g.Lea(RDX, AtIndex(RSP, RDX, 1, 0))
	g.MovMR(8, At(RCX, ptWord(ptSP)), RDX)
	g.Pushfq()
	if g.env.Use == SlotIgnores {
		g.PopM(At(RCX, ptWord(ptFlags)))
	} else {
		g.Pop(RDX)
		g.saveFrame(RCX)
	}
	if g.env.Vectors {
		for i := range int32(16) {
			g.xmm(0xf11, i, At(RCX, slotVector+16*i))
		}
		g.mxcsr(storeMXCSR, At(RCX, slotMXCSR))
		g.MovMI(4, At(RCX, slotMXCSR+4), defaultMXCSR)
		g.mxcsr(loadMXCSR, At(RCX, slotMXCSR+4))
	}
}

// saveFrame emits the filling of those words of struct pt_regs which the frame at RSP has, and of those that are the same at each hit. RDX has
// the flags but for those that the frame has. It clobbers RAX, RDX and R11.
func (g *slotGate) saveFrame(slot Reg) {
	for i, r := range gateRegs {
		g.MovRM(8, RAX, At(RSP, int32(GateRAX+8*i)))
		g.MovMR(8, At(slot, ptWord(ptWords[r])), RAX)
	}
	g.MovRM(8, RAX, At(R12, slotDescIP))
	g.MovMR(8, At(slot, ptWord(ptIP)), RAX)
	g.MovZXM(1, R11, At(RSP, GateFlags))
	g.ShiftRI(Shl, 4, R11, 11) // OF
	g.MovZXM(1, RAX, At(RSP, GateFlags+1))
	g.OpRI(OpAnd, 4, RAX, 0xd5)
	g.OpRI(OpAnd, 8, RDX, ^int32(statusFlags))
	g.OpRR(OpOr, 8, RDX, RAX)
	g.OpRR(OpOr, 8, RDX, R11)
	g.MovMR(8, At(slot, ptWord(ptFlags)), RDX)
	g.MovMI(8, At(slot, ptWord(ptOrigAX)), -1)
	g.MovMI(8, At(slot, ptWord(ptCS)), userCS)
	g.MovMI(8, At(slot, ptWord(ptSS)), userDS)
}

// What instructions do with MXCSR, by their ModRM.reg, and what a C function finds there.
const (
	loadMXCSR    = 2
	storeMXCSR   = 3
	defaultMXCSR = 0x1f80 // no exception is taken, and numbers are rounded to the nearest
)

func (a *Asm) mxcsr(what byte, m Mem) { a.extM(4, 0xfae, what, m) }

// load emits the loading of the registers from the slot in RBX, its end, and the way back to R13. What the handler can not have changed stands in the
// frame still, or in the registers that a function keeps.
func (g *slotGate) load() {
	forward, leave := g.Label(), g.Label()
	g.MovRM(8, RSP, At(RBX, slotFrameAt))
	if g.env.Vectors {
		g.mxcsr(loadMXCSR, At(RBX, slotMXCSR))
		for i := range int32(16) {
			g.xmm(0xf10, i, At(RBX, slotVector+16*i))
		}
	}
	if g.kind == SlotPre {
		g.TestRR(4, RAX, RAX)
		g.Jcc(CondNE, leave)
	}
	kept := keptRegs
	if g.env.Use == SlotChanges {
		g.loadFrame()
	} else {
		kept = clobberedRegs
	}
	g.TestMI(1, At(RBX, ptWord(ptFlags)+1), directionFlag>>8)
	g.Jcc(CondE, forward)
	g.Raw(0xfd) // std
	g.Bind(forward)
	g.keyOf(R11, RBX)
	if g.ofCall() {
		g.MovRM(4, RAX, At(RBX, slotAction))
	} else {
		g.MovRI(RAX, uint64(arch.ActionGo))
	}
	g.loadKept(kept)
	g.MovMI(8, At(R11, 0), 0)
	g.JmpR(R13)
	if g.kind == SlotPre {
		g.Bind(leave)
		if g.env.Use == SlotIgnores {
			g.MovRM(8, RDX, At(RBX, ptWord(ptFlags)))
			g.saveFrame(RBX)
		}
		g.leave()
	}
}

// loadFrame emits the writing of the frame at RSP from the slot in RBX. It clobbers RAX and RCX.
func (g *slotGate) loadFrame() {
	for i, r := range gateRegs {
		g.MovRM(8, RAX, At(RBX, ptWord(ptWords[r])))
		g.MovMR(8, At(RSP, int32(GateRAX+8*i)), RAX)
	}
	g.MovRM(8, RAX, At(RBX, ptWord(ptFlags)))
	g.MovMR(1, At(RSP, GateFlags+1), RAX)
	g.MovRR(4, RCX, RAX)
	g.ShiftRI(Shr, 4, RCX, 11)
	g.OpRI(OpAnd, 4, RCX, 1)
	g.MovMR(1, At(RSP, GateFlags), RCX)
}

// clobberedRegs are those of keptRegs that a function need not keep (System V ABI, x86-64, 3.2.1), and the one in which the gate has its slot.
var clobberedRegs = []Reg{RBX, RSI, RDI, R8, R9, R10}

// loadKept emits the loading of registers that no frame has from the slot in RBX, RBX last.
func (g *slotGate) loadKept(regs []Reg) {
	for _, r := range regs {
		if r != RBX {
			g.MovRM(8, r, At(RBX, ptWord(ptWords[r])))
		}
	}
	g.MovRM(8, RBX, At(RBX, ptWord(ptWords[RBX])))
}
