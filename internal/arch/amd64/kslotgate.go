package amd64

import (
	"fmt"

	"kprobes.dev/kprobes/internal/arch"
)

// The gate of a handler that runs in line in a kernel. It is that of a process (slotgate.go) but for this:
//
//   - A slot is a CPU's, at its number. Interrupts are off while a handler runs, and the preemption count says that it must not sleep: the handler
//     stays on its CPU, and only an NMI comes on top of it. So no other handler can run in the slot, and the key, which says that one runs, needs no
//     locked instruction.
//   - The frame's place is the kernel's stack, and the handler runs below it. There is no red zone.
//   - The stack pointer, the segments and the interrupt flag are the kernel's own.
//   - It saves no vector registers: a kernel's handlers use none.
//
// The slot behind those of the CPUs is that of the task on which modules start and end. That task has interrupts on, and so the functions that both
// call know who calls.

// KernelSlotEnv says what the gates and functions of handlers know that run in line in a kernel. All addresses lie in the upper 2 GB.
type KernelSlotEnv struct {
	Keys   uint64 // 8 bytes for each CPU, zeroed
	Slots  uint64 // a slot for each CPU, and one more; prepared by PutSlot, the last one by PutStartSlot
	CPUs   int
	Kernel *arch.Kernel
}

// slotEFLAGS is where a kernel's slot has the flags as they were at the gate: there are no vector registers there.
const slotEFLAGS = slotVector

// PutStartSlot prepares the memory of the slot in which modules start and end.
func PutStartSlot(b []byte, addr uint64, n int) {
	PutSlot(b, addr, n, 0)
	clear(b[slotAtomic : slotAtomic+4])
}

// check says why generated code can not work with the environment.
func (e *KernelSlotEnv) check() error {
	for _, a := range []uint64{e.Keys, e.Keys + uint64(8*e.CPUs), e.Slots, e.Slots + uint64((e.CPUs+1)*SlotSize)} {
		if !fitsDisp(a) {
			return fmt.Errorf("handlers in line in a kernel: 0x%x does not lie in the upper 2 GB", a)
		}
	}
	return nil
}

// start is the address of the slot in which modules start and end.
func (e *KernelSlotEnv) start() uint64 { return e.Slots + uint64(e.CPUs*SlotSize) }

// NewKernelSlotGate generates the gate of a kernel's handlers at addr.
func NewKernelSlotGate(addr uint64, kind SlotKind, env KernelSlotEnv) (*SlotGate, error) {
	if err := env.check(); err != nil {
		return nil, err
	}
	all := SlotGateEnv{Keys: env.Keys, Slots: env.Slots, Use: SlotChanges}
	g := &kernelSlotGate{slotGate: slotGate{Asm: NewAsm(addr), kind: kind, env: all}, k: env}
	g.missed, g.off, g.back = g.Label(), g.Label(), g.Label()
	g.claim()
	g.save()
	g.saveSystem()
	g.handle()
	g.Bind(g.back)
	g.Raw(endbr64...)
	g.load()
	return g.end(g.back)
}

type kernelSlotGate struct {
	slotGate
	k KernelSlotEnv
}

// Cli and Sti switch interrupts off and on.
func (a *Asm) Cli() { a.Raw(0xfa) }

// Sti switches interrupts on, behind the next instruction.
func (a *Asm) Sti() { a.Raw(0xfb) }

// claim emits the way to the CPU's slot in RCX, whose key's address is R11.
func (g *kernelSlotGate) claim() {
	g.OpMI(OpCmp, 4, At(R12, SlotDescOff), 0)
	g.Jcc(CondNE, g.off)
	g.Pushfq()
	g.Cli()
	g.MovRM(4, RCX, AtGS(g.k.Kernel.CPU))
	g.ShiftRI(Shl, 8, RCX, 3)
	g.Lea(R11, At(RCX, int32(g.k.Keys)))
	g.ShiftRI(Shl, 8, RCX, slotShift-3)
	g.Lea(RCX, At(RCX, int32(g.k.Slots)))
	g.OpMI(OpCmp, 8, At(R11, 0), 0)
	g.Jcc(CondNE, g.missed)
	g.MovMI(8, At(R11, 0), 1)
	g.PopM(At(RCX, slotEFLAGS))
	if g.ofCall() {
		g.MovMR(8, At(RCX, slotCall), RAX)
	}
	g.IncM(4, AtGS(g.k.Kernel.Preempt))
	claimed := g.Label()
	g.Jmp(claimed)
	g.Bind(g.missed)
	g.MovRM(8, RCX, At(R12, slotDescMissed))
	g.Lock().IncM(8, At(RCX, 0))
	g.Popfq()
	g.Bind(g.off)
	g.MovRI(RAX, uint64(arch.ActionGo))
	g.JmpR(R13)
	g.Bind(claimed)
}

// saveSystem emits the completion of the registers in the slot by what is a kernel's.
func (g *kernelSlotGate) saveSystem() {
	g.MovRM(8, RAX, At(RCX, slotEFLAGS))
	g.OpRI(OpAnd, 4, RAX, flagIF)
	g.OpMR(OpOr, 8, At(RCX, ptWord(ptFlags)), RAX)
	g.segments(At(RCX, ptWord(ptCS)), At(RCX, ptWord(ptSS)))
}

// segments emits the storing of the code and the stack segment. It clobbers RAX.
func (g *kernelSlotGate) segments(cs, ss Mem) {
	g.Raw(0x8c, 0xc8) // mov %cs, %eax
	g.MovMR(8, cs, RAX)
	g.Raw(0x8c, 0xd0) // mov %ss, %eax
	g.MovMR(8, ss, RAX)
}

// load emits the loading of the registers from the slot in RBX, its end, and the way back.
func (g *kernelSlotGate) load() {
	forward, stays, leave := g.Label(), g.Label(), g.Label()
	g.Cld() // a handler that was abandoned may have set it
	g.MovRM(8, RSP, At(RBX, slotFrameAt))
	if g.kind == SlotPre {
		g.TestRR(4, RAX, RAX)
		g.Jcc(CondNE, leave)
	}
	g.loadFrame()
	g.TestMI(1, At(RBX, ptWord(ptFlags)+1), directionFlag>>8)
	g.Jcc(CondE, forward)
	g.Raw(0xfd) // std
	g.Bind(forward)
	g.MovRM(8, R13, At(RBX, slotBackTo))
	g.keyOf(R11, RBX)
	g.MovRI(RAX, uint64(arch.ActionGo))
	if g.ofCall() {
		g.MovRM(4, RAX, At(RBX, slotAction))
	}
	g.DecM(4, AtGS(g.k.Kernel.Preempt))
	g.TestMI(4, At(RBX, slotEFLAGS), flagIF)
	g.loadKept(keptRegs)
	g.MovMI(8, At(R11, 0), 0)
	g.Jcc(CondE, stays)
	g.Sti()
	g.Bind(stays)
	g.JmpR(R13)
	if g.kind == SlotPre {
		g.Bind(leave)
		g.leave()
	}
}

// leave emits the way to where the registers say: what is loaded last stands below the new stack pointer. No interrupt falls on it: they
// are off up to the last instruction.
func (g *kernelSlotGate) leave() {
	pt := func(n int32) Mem { return At(RBX, ptWord(n)) }
	g.MovRM(8, R13, pt(ptIP))
	g.MovRM(8, RAX, pt(ptSP))
	g.Lea(RSP, At(RAX, -leaveBlock))
	for _, put := range [][2]int32{{0, ptWords[RAX]}, {8, ptWords[R12]}, {16, ptWords[R13]}, {24, ptIP}, {48, ptSP}} {
		g.MovRM(8, RAX, pt(put[1]))
		g.MovMR(8, At(RSP, put[0]), RAX)
	}
	g.segments(At(RSP, 32), At(RSP, 56))
	const changes = statusFlags | directionFlag
	g.MovRM(8, RAX, At(RBX, slotEFLAGS))
	g.OpRI(OpAnd, 8, RAX, ^int32(changes))
	g.MovRM(4, RCX, pt(ptFlags))
	g.OpRI(OpAnd, 4, RCX, changes)
	g.OpRR(OpOr, 8, RAX, RCX)
	g.MovMR(8, At(RSP, 40), RAX)
	g.keyOf(R12, RBX)
	for _, r := range []Reg{RCX, RDX, R11} {
		g.MovRM(8, r, pt(ptWords[r]))
	}
	g.loadKept(keptRegs)
	g.DecM(4, AtGS(g.k.Kernel.Preempt))
	g.MovMI(8, At(R12, 0), 0)
	g.Pop(RAX)
	g.Pop(R12)
	g.Pop(R13)
	g.Raw(0x48, 0xcf) // iretq
}
