package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
)

// The gate of a process that another one probes (call.go has its contract). It posts the
// thread's registers to a slot of the mailbox, memory that the tracer has mapped too, and
// sleeps until the tracer has run the handler and written its answer there, or until its
// time is up:
//
//	free ──► claimed ──► posted ──► taken ──► answered ──► free
//	            │           │         ├─────► refused  ──► free
//	            │           │         └─────► abandoned ─► free, by the tracer
//	            └───────────┴───────────────────────────► free
//
// The thread makes the steps to claimed, posted, abandoned, and to free from where it is the
// owner; the tracer those to taken, answered, refused, and to free from abandoned. Each step
// that both could make is a compare and exchange, so a slot has one owner at any time: a
// tracer that is late writes into a slot that nobody else has got.
//
// A thread whose time was up switches all waiting off, for the tracer may be dead, and wakes
// the tracer, which switches it on again if it lives.
//
// A signal handler may interrupt the wait, hit a probe itself and post to another slot; it
// may leave for good, which leaves the slot claimed; and it may fork. What the thread needs
// to go on without an answer is therefore on its own stack, and it asks for its process's
// id before it posts and when a signal has woken it: the mailbox belongs to one process.
//
// A futex wait has an absolute deadline, so that it can be begun again without end.

// What package mailmem leaves to the processor of a slot.
const (
	slotVectors  = 52               // answer: 32 bits, not 0: XMM registers have changed
	slotRegs     = arch.MailRegsOff // by register number
	slotFlags    = 192
	slotResume   = 208 // where the gate goes back to
	slotXMM      = 256
	slotNewRegs  = 512 // answer: by register number
	slotNewFlags = 640 // answer: as lahf and seto leave them
	slotNewIP    = 648
	slotNewArith = 656 // answer: by their numbers in the flags register
	slotNewXMM   = 704
)

// leaveBlock is the room that ActionLeave takes below the new stack pointer's red zone: three
// registers and the frame of iretq.
const leaveBlock = 8 * 8

// statusFlags are CF, PF, AF, ZF, SF and OF.
const statusFlags = 0x8d5

const (
	sysClockGettime = 228
	sysFutex        = 202

	clockMonotonic  = 1
	futexWake       = 1
	futexWaitBitset = 9
	futexAny        = 0xffffffff

	errAgain = -11
	errIntr  = -4

	nanosPerSecond = 1_000_000_000
)

// GateEnv says what the gate of a process knows.
type GateEnv struct {
	Mailbox uint64 // its address in the process
	PID     uint32 // the process's id, as it sees it itself
	Wait    uint64 // ns that a thread waits for an answer
	Quiet   uint64 // CodegenEnv.Quiet
}

// NewGate generates the gate at addr. It makes the system calls getpid, gettid, clock_gettime
// (CLOCK_MONOTONIC) and futex (FUTEX_WAKE, FUTEX_WAIT_BITSET).
func NewGate(addr uint64, env GateEnv) ([]byte, error) {
	g := &gateCode{Asm: NewAsm(addr), env: env}
	g.wait, g.answered, g.refused, g.late = g.Label(), g.Label(), g.Label(), g.Label()
	g.missed, g.withdraw, g.restore = g.Label(), g.Label(), g.Label()
	g.claim()
	g.post()
	g.sleep()
	g.timeUp()
	g.back()
	g.leave()
	return g.Finish()
}

type gateCode struct {
	*Asm
	env GateEnv

	wait     Label // look at the slot's state
	answered Label // the tracer has answered
	refused  Label // it will not
	late     Label // the time is up
	withdraw Label // give the slot back: nobody has seen it
	restore  Label // go on as if nothing had been, the slot is not ours any more
	missed   Label // likewise; R12 is the descriptor, nothing is on the stack
}

// gatePushed are the registers that the wait uses and that the thread's own values are needed of
// if nobody answers; the descriptor is gatePushed first.
var gatePushed = []Reg{R12, RDI, RSI, R9, R10}

// claim emits the way to a slot of our own in RCX. The instance is on the stack.
func (g *gateCode) claim() {
	stopped, next, got := g.Label(), g.Label(), g.Label()
	g.OpMI(OpCmp, 4, At(R12, arch.MailDeadOff), 0)
	g.Jcc(CondNE, stopped)
	if g.env.Quiet != 0 {
		g.MovRI(RCX, g.env.Quiet)
		g.OpMI(OpCmp, 8, At(RCX, 0), 0)
		g.Jcc(CondNE, g.missed)
	}
	g.MovRI(RCX, g.env.Mailbox)
	g.OpMI(OpCmp, 4, At(RCX, arch.MailOffOff), arch.MailOn)
	g.Jcc(CondNE, g.missed)
	g.Push(RAX)
	g.Lea(RCX, At(RCX, arch.MailSlotsOff))
	g.MovRI(R11, arch.MailSlotClaimed)
	try := g.Here()
	g.OpMI(OpCmp, 4, At(RCX, arch.MailStateOff), arch.MailSlotFree)
	g.Jcc(CondNE, next)
	g.MovRI(RAX, arch.MailSlotFree)
	g.Lock().Cmpxchg(4, At(RCX, arch.MailStateOff), R11)
	g.Jcc(CondE, got)
	g.Bind(next)
	g.Lea(RCX, At(RCX, arch.MailSlotSize))
	g.MovRI(RAX, g.env.Mailbox+arch.MailSlotsOff+arch.MailSlots*arch.MailSlotSize)
	g.OpRR(OpCmp, 8, RCX, RAX)
	g.Jcc(CondB, try)
	g.Pop(RAX)
	g.Bind(g.missed)
	g.Lock().IncM(8, At(R12, arch.MailMissedOff))
	g.unchanged()
	g.Bind(stopped)
	g.Lock().IncM(8, At(R12, arch.MailStopOff))
	g.unchanged()
	g.Bind(got)
}

// unchanged emits the way back of a hit that is missed: the return of a call whose entry was
// missed is not looked at.
func (g *gateCode) unchanged() {
	g.MovRI(RAX, uint64(arch.ActionDrop))
	g.JmpR(R13)
}

// post emits the filling of the slot in RCX, which becomes R12, and its posting.
func (g *gateCode) post() {
	g.PopM(At(RCX, arch.MailInstanceOff))
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
	for i := range int32(16) {
		g.xmm(0xf11, i, At(RCX, slotXMM+16*i))
	}
	for _, r := range gatePushed {
		g.Push(r)
	}
	g.MovRR(8, R12, RCX)
	g.ours(g.withdraw)
	g.MovRI(RAX, sysGettid)
	g.Syscall()
	g.MovMR(4, At(R12, arch.MailTIDOff), RAX)
	g.deadline()
	g.MovMI(4, At(R12, arch.MailStateOff), arch.MailSlotPosted)
	g.ring()
	g.Jmp(g.wait)
}

// keptRegs are the registers that hold the thread's own values when the gate is entered.
var keptRegs = []Reg{RBX, RBP, RSI, RDI, R8, R9, R10, R14, R15}

// xmm emits movups between an XMM register and memory.
func (a *Asm) xmm(op uint32, n int32, m Mem) {
	a.instM(form{size: 4, op: op, reg: byte(n)}, m)
}

// ours emits the question whether this is the process that the mailbox belongs to.
func (g *gateCode) ours(not Label) {
	g.MovRI(RAX, sysGetpid)
	g.Syscall()
	g.OpRI(OpCmp, 4, RAX, int32(g.env.PID))
	g.Jcc(CondNE, not)
}

// deadline emits the time at which the wait ends, into the slot.
func (g *gateCode) deadline() {
	whole := g.Label()
	g.MovRI(RDI, clockMonotonic)
	g.Lea(RSI, At(R12, arch.MailTimeOff))
	g.MovRI(RAX, sysClockGettime)
	g.Syscall()
	g.TestRR(4, RAX, RAX)
	g.Jcc(CondNE, g.withdraw)
	g.MovRM(8, RAX, At(R12, arch.MailTimeOff+8))
	g.OpRI(OpAdd, 8, RAX, int32(g.env.Wait%nanosPerSecond))
	g.OpRI(OpCmp, 8, RAX, nanosPerSecond)
	g.Jcc(CondB, whole)
	g.OpRI(OpSub, 8, RAX, nanosPerSecond)
	g.IncM(8, At(R12, arch.MailTimeOff))
	g.Bind(whole)
	g.MovMR(8, At(R12, arch.MailTimeOff+8), RAX)
	g.OpMI(OpAdd, 8, At(R12, arch.MailTimeOff), int32(g.env.Wait/nanosPerSecond))
}

// ring emits the bell: it wakes one of the tracer's threads if one waits.
func (g *gateCode) ring() {
	busy := g.Label()
	g.MovRI(RDI, g.env.Mailbox+arch.MailBellOff)
	g.Lock().IncM(4, At(RDI, 0))
	g.OpMI(OpCmp, 4, At(RDI, arch.MailIdleOff-arch.MailBellOff), 0)
	g.Jcc(CondE, busy)
	g.MovRI(RSI, futexWake)
	g.MovRI(RDX, 1)
	g.MovRI(RAX, sysFutex)
	g.Syscall()
	g.Bind(busy)
}

// sleep emits the wait for the state to become one that ends it.
func (g *gateCode) sleep() {
	again := g.Label()
	g.Bind(g.wait)
	g.MovRM(4, RDX, At(R12, arch.MailStateOff))
	g.OpRI(OpCmp, 4, RDX, arch.MailSlotPosted)
	g.Jcc(CondE, again)
	g.OpRI(OpCmp, 4, RDX, arch.MailSlotAnswered)
	g.Jcc(CondE, g.answered)
	g.OpRI(OpCmp, 4, RDX, arch.MailSlotTaken)
	g.Jcc(CondNE, g.refused)
	g.Bind(again)
	g.MovRR(8, RDI, R12)
	g.MovRI(RSI, futexWaitBitset)
	g.Lea(R10, At(R12, arch.MailTimeOff))
	g.MovRI(R9, futexAny)
	g.MovRI(RAX, sysFutex)
	g.Syscall()
	g.TestRR(4, RAX, RAX)
	g.Jcc(CondE, g.wait)
	g.OpRI(OpCmp, 4, RAX, errAgain)
	g.Jcc(CondE, g.wait)
	g.OpRI(OpCmp, 4, RAX, errIntr)
	g.Jcc(CondNE, g.late)
	g.ours(g.restore) // the handler may have forked: the slot is the parent's
	g.Jmp(g.wait)
}

// timeUp emits the end of a wait in vain: the post is taken back.
func (g *gateCode) timeUp() {
	g.Bind(g.late)
	g.MovRI(RDI, g.env.Mailbox)
	g.MovMI(4, At(RDI, arch.MailOffOff), arch.MailMuted)
	g.ring()
	g.MovRI(RAX, arch.MailSlotPosted)
	g.MovRI(RCX, arch.MailSlotFree)
	g.Lock().Cmpxchg(4, At(R12, arch.MailStateOff), RCX)
	g.Jcc(CondE, g.restore)
	g.MovRI(RAX, arch.MailSlotTaken)
	g.MovRI(RCX, arch.MailSlotAbandoned)
	g.Lock().Cmpxchg(4, At(R12, arch.MailStateOff), RCX)
	g.Jcc(CondE, g.restore)
	g.OpRI(OpCmp, 4, RAX, arch.MailSlotAnswered) // just in time
	g.Jcc(CondE, g.answered)
	g.Bind(g.refused)
	g.Bind(g.withdraw)
	g.MovMI(4, At(R12, arch.MailStateOff), arch.MailSlotFree)
	g.Bind(g.restore)
	for i := len(gatePushed) - 1; i >= 0; i-- {
		g.Pop(gatePushed[i])
	}
	g.Jmp(g.missed)
}

// back emits the loading of an answer. For all but ActionLeave the registers that the frame
// has saved go there.
func (g *gateCode) back() {
	plain := g.Label()
	g.Bind(g.answered)
	g.Lea(RSP, At(RSP, int32(8*len(gatePushed))))
	g.OpMI(OpCmp, 4, At(R12, slotVectors), 0)
	g.Jcc(CondE, plain)
	for i := range int32(16) {
		g.xmm(0xf10, i, At(R12, slotNewXMM+16*i))
	}
	g.Bind(plain)
	g.loadAnswer(R12)
}

// GateLeaves says whether the instruction at pc is the one by which a gate whose code ends at end
// leaves for ActionLeave. Where the thread goes on stands at its stack pointer then. At all others
// of the gate it stands in R13, or the detour does that the thread came from.
func GateLeaves(pc, end uint64) bool { return pc == end-2 }

// leave emits ActionLeave: the block stands below the red zone.
func (g *gateCode) leave() {
	g.leaveBy(func(cs, ss Mem) {
		g.MovMI(8, cs, userCS)
		g.MovMI(8, ss, userDS)
	})
}
