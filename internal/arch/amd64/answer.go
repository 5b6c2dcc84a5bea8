package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
)

// What both gates do with the answer of a slot (gate.go has the slot's layout).

// loadAnswer emits the loading of the answer in slot and the way back to the detour; the
// registers that the frame has saved go there. Control goes on behind it for ActionLeave.
func (a *Asm) loadAnswer(slot Reg) {
	leave := a.Label()
	for _, r := range keptRegs {
		a.MovRM(8, r, At(slot, slotNewRegs+8*int32(r)))
	}
	a.OpMI(OpCmp, 4, At(slot, arch.MailActionOff), int32(arch.ActionLeave))
	a.Jcc(CondE, leave)
	for i, r := range gateRegs {
		a.MovRM(8, RAX, At(slot, slotNewRegs+8*int32(r)))
		a.MovMR(8, At(RSP, int32(GateRAX+8*i)), RAX)
	}
	a.MovRM(8, RAX, At(slot, slotNewFlags))
	a.MovMR(8, At(RSP, GateFlags), RAX)
	a.MovRM(4, RAX, At(slot, arch.MailActionOff))
	a.MovMI(4, At(slot, arch.MailStateOff), arch.MailSlotFree)
	a.JmpR(R13)
	a.Bind(leave)
}

// leaveBy emits ActionLeave for the slot of R12: what is loaded last stands below the new stack
// pointer (arch.MailBlockOff tells where), with the stack pointer below it, so that no frame of a signal
// or an interrupt falls on it; then the slot is given back and iretq loads the rest at once.
// segments emits the stores of the code and the stack segment into the frame; it may use RAX. Up to
// the last instruction R13 tells where the thread goes on, which may be in the detour that it came
// from.
func (a *Asm) leaveBy(segments func(cs, ss Mem)) {
	put := func(at int32, from int32) {
		a.MovRM(8, RAX, At(R12, from))
		a.MovMR(8, At(RSP, at), RAX)
	}
	reg := func(r Reg) int32 { return slotNewRegs + 8*int32(r) }
	a.MovRM(8, R13, At(R12, slotNewIP))
	a.MovRM(8, RSP, At(R12, arch.MailBlockOff))
	put(0, reg(RAX))
	put(8, reg(R12))
	put(16, reg(R13))
	a.MovMR(8, At(RSP, 24), R13)
	put(48, reg(RSP))
	segments(At(RSP, 32), At(RSP, 56))
	a.Pushfq()
	a.Pop(RAX)
	a.OpRI(OpAnd, 4, RAX, ^int32(statusFlags))
	a.OpRM(OpOr, 8, RAX, At(R12, slotNewArith))
	a.MovMR(8, At(RSP, 40), RAX)
	for _, r := range []Reg{RCX, RDX, R11} {
		a.MovRM(8, r, At(R12, reg(r)))
	}
	a.MovMI(4, At(R12, arch.MailStateOff), arch.MailSlotFree)
	a.Pop(RAX)
	a.Pop(R12)
	a.Pop(R13)
	a.Raw(0x48, 0xcf) // iretq
}
