package amd64

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
)

// The gate of a kernel that is probed from outside (call.go has the contract of a gate). It
// posts the registers to the mailbox slot of its CPU and spins until the tracer, which looks
// at that memory all the time, has answered or the time is up. The mailbox, its words, and a
// slot's states are those of NewGate, but nobody sleeps: the bell is only counted, and there
// is one slot for a CPU.
//
// A hit that finds the slot taken is missed and counted: an interrupt on top of a hit that
// waits, or another task's hit while the one that waits was scheduled away. Interrupts stay as
// they are, and the vCPU serves them while it waits. Vector state is neither posted nor
// changed.
//
// Nothing of the gate faults, and it makes no call. All that is in use is above the stack
// pointer.

// KernelGateEnv says what the gate of a kernel knows.
type KernelGateEnv struct {
	Mailbox uint64 // its address in the kernel: arch.MailSlotsOff and a slot for each CPU, at least nr_cpu_ids
	Kernel  *arch.Kernel
	Ticks   uint64 // of the time stamp counter that a CPU waits for an answer
}

// A slot of a kernel has EFLAGS as they were when it was posted: all but the arithmetic flags
// are as they were at the point.
const slotSystem = 200

// slotShift is log2 of arch.MailSlotSize.
const slotShift = 10

// KernelMailSize is the size of the part of a kernel's mailbox that the gate knows, in bytes.
// The descriptors of handlers (arch.MailDescSize bytes each) are wherever arch.Call says.
func KernelMailSize(cpus int) int { return arch.MailSlotsOff + cpus*arch.MailSlotSize }

// NewKernelGate generates the gate at addr.
func NewKernelGate(addr uint64, env KernelGateEnv) ([]byte, error) {
	if env.Ticks == 0 || env.Ticks >= 1<<62 {
		return nil, errno.Errorf(unix.EINVAL, "a wait of %d ticks: must be 1 to 2^62", env.Ticks)
	}
	g := &kernelGate{Asm: NewAsm(addr), env: env}
	g.answered, g.refused, g.missed = g.Label(), g.Label(), g.Label()
	g.claim()
	g.post()
	g.spin()
	g.timeUp()
	g.back()
	g.leave()
	return g.Finish()
}

// kernelGate generates. RCX is the slot, R12 the descriptor, R13 the way back; RAX, RDX and
// R11 are free.
type kernelGate struct {
	*Asm
	env KernelGateEnv

	answered Label // the tracer has answered
	refused  Label // it will not: the slot is ours
	missed   Label // go on as if nothing had been, the slot is not ours
}

// claim emits the way to the CPU's slot.
func (g *kernelGate) claim() {
	stopped, got := g.Label(), g.Label()
	g.OpMI(OpCmp, 4, At(R12, arch.MailDeadOff), 0)
	g.Jcc(CondNE, stopped)
	g.MovRI(RCX, g.env.Mailbox)
	g.OpMI(OpCmp, 4, At(RCX, arch.MailOffOff), arch.MailOn)
	g.Jcc(CondNE, g.missed)
	g.MovRM(4, R11, AtGS(g.env.Kernel.CPU))
	g.ShiftRI(Shl, 8, R11, slotShift)
	g.Lea(RCX, AtIndex(RCX, R11, 1, arch.MailSlotsOff))
	g.Push(RAX)
	g.MovRI(RAX, arch.MailSlotFree)
	g.MovRI(R11, arch.MailSlotClaimed)
	g.Lock().Cmpxchg(4, At(RCX, arch.MailStateOff), R11)
	g.Jcc(CondE, got)
	g.Pop(RAX)
	g.Bind(g.missed)
	g.Lock().IncM(8, At(R12, arch.MailMissedOff))
	g.unchanged()
	g.Bind(stopped)
	g.Lock().IncM(8, At(R12, arch.MailStopOff))
	g.unchanged()
	g.Bind(got)
}

// unchanged emits the way back of a hit that is missed.
func (g *kernelGate) unchanged() {
	g.MovRI(RAX, uint64(arch.ActionDrop))
	g.JmpR(R13)
}

// post emits the filling of the slot and its posting; R11 becomes the time when the wait ends.
func (g *kernelGate) post() {
	g.PopM(At(RCX, arch.MailInstanceOff))
	g.Pushfq()
	g.PopM(At(RCX, slotSystem))
	g.MovMR(8, At(RCX, arch.MailDescOff), R12)
	g.MovMR(8, At(RCX, slotResume), R13)
	g.Lea(RDX, AtIndex(RSP, RDX, 1, 0))
	g.MovMR(8, At(RCX, slotRegs+8*int32(RSP)), RDX)
	for i, r := range gateRegs {
		g.MovRM(8, RAX, At(RSP, int32(GateRAX+8*i)))
		g.MovMR(8, At(RCX, slotRegs+8*int32(r)), RAX)
	}
	g.MovRM(8, RAX, At(RSP, GateFlags))
	g.MovMR(8, At(RCX, slotFlags), RAX)
	for _, r := range keptRegs {
		g.MovMR(8, At(RCX, slotRegs+8*int32(r)), r)
	}
	g.MovRM(8, RAX, AtGS(g.env.Kernel.Current))
	g.MovRM(4, RAX, At(RAX, g.env.Kernel.PID))
	g.MovMR(4, At(RCX, arch.MailTIDOff), RAX)
	g.MovRI(R11, g.env.Ticks)
	g.now()
	g.OpRR(OpAdd, 8, R11, RAX)
	g.MovMI(4, At(RCX, arch.MailStateOff), arch.MailSlotPosted)
	g.bell()
}

// now emits RAX = the time stamp counter; RDX is clobbered.
func (g *kernelGate) now() {
	g.Rdtsc()
	g.ShiftRI(Shl, 8, RDX, 32)
	g.OpRR(OpOr, 8, RAX, RDX)
}

// bell emits the counting of the bell. It clobbers RDX.
func (g *kernelGate) bell() {
	g.MovRI(RDX, g.env.Mailbox)
	g.Lock().IncM(4, At(RDX, arch.MailBellOff))
}

// spin emits the wait for the state to become one that ends it.
func (g *kernelGate) spin() {
	again, loop := g.Label(), g.Here()
	g.MovRM(4, RDX, At(RCX, arch.MailStateOff))
	g.OpRI(OpCmp, 4, RDX, arch.MailSlotAnswered)
	g.Jcc(CondE, g.answered)
	g.OpRI(OpCmp, 4, RDX, arch.MailSlotPosted)
	g.Jcc(CondE, again)
	g.OpRI(OpCmp, 4, RDX, arch.MailSlotTaken)
	g.Jcc(CondNE, g.refused)
	g.Bind(again)
	g.Pause()
	g.now()
	g.OpRR(OpSub, 8, RAX, R11)
	g.Jcc(CondS, loop)
}

// timeUp emits the end of a wait in vain: the post is taken back, and nobody waits until the
// tracer, if it lives, says so again.
func (g *kernelGate) timeUp() {
	g.bell()
	g.MovMI(4, At(RDX, arch.MailOffOff), arch.MailMuted)
	g.MovRI(RAX, arch.MailSlotPosted)
	g.MovRI(R11, arch.MailSlotFree)
	g.Lock().Cmpxchg(4, At(RCX, arch.MailStateOff), R11)
	g.Jcc(CondE, g.missed)
	g.MovRI(RAX, arch.MailSlotTaken)
	g.MovRI(R11, arch.MailSlotAbandoned)
	g.Lock().Cmpxchg(4, At(RCX, arch.MailStateOff), R11)
	g.Jcc(CondE, g.missed)
	g.OpRI(OpCmp, 4, RAX, arch.MailSlotAnswered) // just in time
	g.Jcc(CondE, g.answered)
	g.Bind(g.refused)
	g.MovMI(4, At(RCX, arch.MailStateOff), arch.MailSlotFree)
	g.Jmp(g.missed)
}

// back emits the loading of an answer. For all but ActionLeave the registers that the frame
// has saved go there.
func (g *kernelGate) back() {
	g.Bind(g.answered)
	g.loadAnswer(RCX)
}

// leave emits ActionLeave, with the kernel's own segments.
func (g *kernelGate) leave() {
	g.MovRR(8, R12, RCX)
	g.leaveBy(func(cs, ss Mem) {
		g.Raw(0x8c, 0xc8) // mov %cs, %eax
		g.MovMR(8, cs, RAX)
		g.Raw(0x8c, 0xd0) // mov %ss, %eax
		g.MovMR(8, ss, RAX)
	})
}

// ReadKernelPost is ReadPost for a kernel's slot: the flags are the CPU's own, and there are
// no vector registers. It is answered by PutAnswer; for ActionLeave the block is that of
// LeaveBlock for a function without a red zone (goFunction).
func ReadKernelPost(slot []byte) Post {
	p := ReadPost(slot)
	p.Regs.X = [16][2]uint64{}
	p.Regs.Flags = p.Regs.Flags&statusFlags | binary.LittleEndian.Uint64(slot[slotSystem:])&^statusFlags
	return p
}
