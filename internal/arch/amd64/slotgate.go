package amd64

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch"
)

// The gate of a handler that runs in line: code that stands in the target itself, and is called where the hit is, on the thread that hits
// (call.go has the contract of a gate). It asks nobody and waits for nobody.
//
// Each running handler has a slot, which stands for its CPU: it is the thread's while the handler runs, and no other handler runs in it. So a hit
// within a handler, or in a signal handler on top of one, finds the thread's slot taken, and is a miss.
//
// A slot is taken by writing the thread's FS base, which no two threads share, into a table of keys. Eight keys that stand in one line of the
// cache are a group; a thread always looks at the same group, whatever else is free, and so it finds a key of its own.
//
//	free ──► key ──► frame, resume, desc ──► registers ──► the handler runs ──► free
//
// Until the frame is there the thread can not have reached what may fault. All that is needed to leave the handler at any instruction of it stands in
// the slot: who abandons it (a fault that the resident handlers catch) goes to the gate's own end, with the slot in RBX.
//
// A run that never comes back, since a signal handler on top of it has left by siglongjmp or its thread has ended there, keeps its slot, and the hits of
// threads with that FS base are misses from then on: who holds the target finds it, and frees it. A child that has forked keeps the slots of its
// parent's other threads in the same way.
//
// The registers are struct pt_regs of the kernel (arch/x86/include/asm/ptrace.h, Linux 6.18), whose IP is that of the descriptor.

// SlotKind says what is called, and with which arguments.
type SlotKind int

// The kinds of handlers (include/linux/kprobes.h, Linux 6.18).
const (
	SlotPre    SlotKind = iota // (kprobe, regs); not 0: the thread goes on where the registers say
	SlotPost                   // (kprobe, regs, 0)
	SlotEntry                  // (kretprobe_instance, regs), of a return probe; not 0: the call is let go
	SlotReturn                 // (kretprobe_instance, regs): where the call returns
	SlotJump                   // a jprobe's: the arguments of the C function at whose entry it is called
	SlotKinds                  // how many there are
)

// SlotGateEnv says what a gate of handlers that run in line knows.
type SlotGateEnv struct {
	Keys    uint64 // address of the keys, zeroed: 8 bytes for each slot, 64-byte aligned
	Slots   uint64 // address of the slots, prepared by PutSlot
	Groups  int    // log2 of the number of groups of 8 slots, at least 1
	Vectors bool   // handlers may use XMM0 to XMM15
	Stacks  bool   // slots have stacks
	Use     SlotUse
}

// directionFlag is DF.
const directionFlag = 1 << 10

// SlotGate is a gate.
type SlotGate struct {
	Code    []byte
	Abandon uint64       // where a thread is sent, with its slot in RBX, that abandons its handler
	Faults  []FaultEntry // of reads that may fault
}

// NewSlotGate generates the gate at addr.
func NewSlotGate(addr uint64, kind SlotKind, env SlotGateEnv) (*SlotGate, error) {
	g := &slotGate{Asm: NewAsm(addr), env: env, kind: kind}
	if kind == SlotJump {
		g.env.Use = SlotReads // what it does with its arguments is its own
	}
	g.missed, g.off, g.back, g.abandon = g.Label(), g.Label(), g.Label(), g.Label()
	if g.ofCall() {
		g.Push(RAX) // the claim needs it
	}
	g.claim()
	if g.ofCall() {
		g.Pop(RAX)
		g.MovMR(8, At(RCX, slotCall), RAX)
	}
	g.save()
	g.handle()
	g.Bind(g.back)
	g.load()
	g.Bind(g.abandon)
	g.abandoned()
	return g.end(g.abandon)
}

// handle emits the call of the handler, as its kind is called.
func (g *slotGate) handle() {
	switch g.kind {
	case SlotEntry:
		g.entry()
	case SlotReturn:
		g.returned()
	case SlotJump:
		g.jump()
	default:
		g.run()
	}
}

// end ends the gate.
func (g *slotGate) end(abandon Label) (*SlotGate, error) {
	code, err := g.Finish()
	if err != nil {
		return nil, err
	}
	out := &SlotGate{Code: code, Abandon: g.LabelAddr(abandon)}
	if g.kind == SlotJump {
		out.Faults = []FaultEntry{{Lo: g.LabelAddr(g.copies), Hi: g.LabelAddr(g.copied), To: g.LabelAddr(g.copied)}}
	}
	return out, nil
}

type slotGate struct {
	*Asm
	env     SlotGateEnv
	kind    SlotKind
	missed  Label // there is no slot
	off     Label // the handler is not called any more
	back    Label // RBX is the slot, EAX what the handler has returned, R13 where the gate goes back to
	abandon Label // RBX is the slot, EAX 0

	copies, copied Label // of a jprobe's stack: it may end before
}

// ofCall says whether the handler is a return probe's.
func (g *slotGate) ofCall() bool { return g.kind == SlotEntry || g.kind == SlotReturn }

// rdfsbase emits the reading of the thread's FS base.
func (a *Asm) rdfsbase(r Reg) { a.instR(form{size: 8, pre: 0xf3, op: 0xfae}, r) }

// slotHash spreads FS bases, which are often far apart by the same power of two (2^64 divided by the golden ratio).
const slotHash = 0x9e3779b97f4a7c15

// group emits the address of the thread's group into to, where key has its FS base. It may clobber RAX.
func (g *slotGate) group(to, key Reg) {
	g.MovRI(to, slotHash)
	g.ImulRR(8, to, key)
	g.ShiftRI(Shr, 8, to, uint8(64-g.env.Groups))
	g.ShiftRI(Shl, 8, to, 6)
	g.plus(to, g.env.Keys)
}

// plus emits the addition of an address to a register. It may clobber RAX.
func (g *slotGate) plus(to Reg, addr uint64) {
	if n := int32(addr); uint64(n) == addr {
		g.OpRI(OpAdd, 8, to, n)
		return
	}
	g.MovRI(RAX, addr)
	g.OpRR(OpAdd, 8, to, RAX)
}

// minus emits to = a register less an address. It may clobber RAX.
func (g *slotGate) minus(to, from Reg, addr uint64) {
	if n := int32(-addr); uint64(n) == -addr {
		g.Lea(to, At(from, n))
		return
	}
	g.MovRI(RAX, -addr)
	g.Lea(to, AtIndex(from, RAX, 1, 0))
}

// claim emits the way to a slot in RCX, whose key's address is R11. Nothing is on the stack then.
func (g *slotGate) claim() {
	g.OpMI(OpCmp, 4, At(R12, SlotDescOff), 0)
	g.Jcc(CondNE, g.off)
	g.rdfsbase(RCX)
	g.TestRR(8, RCX, RCX)
	g.Jcc(CondE, g.missed)
	g.group(R11, RCX)
	for i := range int32(8) {
		g.OpMR(OpCmp, 8, At(R11, 8*i), RCX)
		g.Jcc(CondE, g.missed)
	}
	try, next, got := g.Here(), g.Label(), g.Label()
	g.OpMI(OpCmp, 8, At(R11, 0), 0)
	g.Jcc(CondNE, next)
	g.OpRR(OpXor, 4, RAX, RAX)
	g.Lock().Cmpxchg(8, At(R11, 0), RCX)
	g.Jcc(CondE, got)
	g.Bind(next)
	g.Lea(R11, At(R11, 8))
	g.TestRI(4, R11, 63)
	g.Jcc(CondNE, try)
	g.miss() // all of the group are taken
	g.Bind(got)
	g.slotOf(RCX, R11)
}

// slotOf emits the address of the slot whose key stands at an address. It may clobber RAX.
func (g *slotGate) slotOf(to, key Reg) {
	g.minus(to, key, g.env.Keys)
	g.ShiftRI(Shl, 8, to, 7) // 1024 bytes for 8
	g.plus(to, g.env.Slots)
}

// keyOf emits the address of the key of the slot that stands at an address. It may clobber RAX.
func (g *slotGate) keyOf(to, slot Reg) {
	g.minus(to, slot, g.env.Slots)
	g.ShiftRI(Shr, 8, to, 7)
	g.plus(to, g.env.Keys)
}

// miss emits the way back of a hit whose handler is not called.
func (g *slotGate) miss() {
	g.Bind(g.missed)
	g.MovRM(8, RCX, At(R12, slotDescMissed))
	g.Lock().IncM(8, At(RCX, 0))
	g.Bind(g.off)
	if g.ofCall() {
		g.Pop(RAX)
	}
	g.MovRI(RAX, uint64(arch.ActionGo))
	g.JmpR(R13)
}

// run emits the call of the handler of a kprobe. Then EAX is what it has returned, and RBX the slot.
func (g *slotGate) run() {
	g.MovRR(8, RBX, RCX)
	g.MovRM(8, RDI, At(R12, slotDescOf))
	if g.kind == SlotPost {
		g.OpRR(OpXor, 4, RDX, RDX) // the kernel's flags are always 0
	}
	g.callHandler()
}

// block emits RBX = the slot, RDI = the struct kretprobe_instance of its call, filled in, and RDX = the call's instance.
func (g *slotGate) block() {
	g.MovRR(8, RBX, RCX)
	g.MovRM(8, RDX, At(RBX, slotCall))
	g.MovRR(8, RDI, RDX)
	g.OpRM(OpSub, 8, RDI, At(R12, slotDescPool))
	g.MovRM(4, RCX, At(R12, slotDescStride))
	g.ShiftRCL(Shr, 8, RDI)
	g.MovRM(8, RAX, At(R12, slotDescBlock))
	g.ImulRR(8, RDI, RAX)
	g.OpRM(OpAdd, 8, RDI, At(R12, slotDescBlocks))
	g.Lea(RDI, At(RDI, blockRI))
	put := func(off int32) { g.MovMR(8, At(RDI, off), RAX) }
	g.MovRM(8, RAX, At(R12, slotDescOf))
	put(riOf)
	g.MovRM(8, RAX, At(RDX, slotReturn))
	put(riReturn)
	g.Lea(RAX, At(RBX, slotTask))
	put(riTask)
	g.MovRM(8, RAX, At(RBX, ptWord(ptSP)))
	put(riFrame)
}

// entry emits the call of an entry handler: the block is marked if it returns 0, else the call is let go.
func (g *slotGate) entry() {
	drop := g.Label()
	g.block()
	g.MovMI(8, At(RDI, blockMark-blockRI), 0) // of a call before, in the same instance
	g.MovMI(4, At(RBX, slotAction), int32(arch.ActionGo))
	g.MovMR(8, At(RBX, slotBlockAt), RDI)
	g.callHandler()
	g.TestRR(4, RAX, RAX)
	g.Jcc(CondNE, drop)
	g.MovRM(8, RDI, At(RBX, slotBlockAt))
	g.MovRM(8, RDX, At(RBX, slotCall))
	g.MovRM(8, RDX, At(RDX, slotKey))
	g.MovMR(8, At(RDI, blockMark-blockRI), RDX)
	g.Jmp(g.back)
	g.Bind(drop)
	g.MovMI(4, At(RBX, slotAction), int32(arch.ActionDrop))
}

// returned emits the call of a return handler, if the call's entry handler has run.
func (g *slotGate) returned() {
	run := g.Label()
	g.block()
	g.MovMI(4, At(RBX, slotAction), int32(arch.ActionGo))
	g.OpMI(OpCmp, 4, At(R12, slotDescMarked), 0)
	g.Jcc(CondE, run)
	g.MovRM(8, RAX, At(RDX, slotKey))
	g.OpMR(OpCmp, 8, At(RDI, blockMark-blockRI), RAX)
	g.MovMI(8, At(RDI, blockMark-blockRI), 0) // a later call with the same key is marked by its own entry
	g.Jcc(CondNE, g.back)
	g.Bind(run)
	g.callHandler()
}

// jumpStack is how many bytes of arguments on the stack a jprobe's function is given.
const jumpStack = 128

// jump emits the call of a jprobe's function, with the registers and the stack of the function at whose entry the thread is. It returns, or calls
// jprobe_return.
func (g *slotGate) jump() {
	g.MovRR(8, RBX, RCX)
	g.ownStack()
	g.Lea(RSP, At(RSP, -jumpStack))
	g.MovRM(8, RSI, At(RBX, ptWord(ptSP)))
	g.Lea(RSI, At(RSI, 8)) // behind the return address
	g.MovRR(8, RDI, RSP)
	g.MovRI(RCX, jumpStack/8)
	g.copies = g.Here()
	g.Raw(0xf3, 0x48, 0xa5) // rep movsq
	g.copied = g.Here()
	for _, r := range []Reg{RDI, RSI, RDX, RCX, R8, R9, RAX} {
		g.MovRM(8, r, At(RBX, ptWord(ptWords[r])))
	}
	g.CallM(At(R12, slotDescHandler))
	g.OpRR(OpXor, 4, RAX, RAX)
}

// ownStack emits RSP = the end of the handler's stack.
func (g *slotGate) ownStack() {
	if g.env.Stacks {
		g.MovRM(8, RSP, At(RBX, slotStack))
	}
	g.OpRI(OpAnd, 8, RSP, -16)
	g.Cld()
}

// callHandler emits the call of the handler with the arguments in RDI, and RDX, and the registers.
func (g *slotGate) callHandler() {
	g.Lea(RSI, At(RBX, slotPtRegs))
	g.ownStack()
	g.CallM(At(R12, slotDescHandler))
}

// abandoned emits what comes before load where a handler has been left somewhere.
func (g *slotGate) abandoned() {
	g.Cld()
	g.MovRM(8, R13, At(RBX, slotBackTo))
	if g.env.Use != SlotChanges {
		for _, r := range keptRegs {
			if r != RBX && !slices.Contains(clobberedRegs, r) {
				g.MovRM(8, r, At(RBX, ptWord(ptWords[r])))
			}
		}
	}
	g.Jmp(g.back)
}

// leave emits the way to where the registers say, in the manner of Asm.leaveBy: what is loaded last stands below the new stack pointer's red
// zone.
func (g *slotGate) leave() {
	pt := func(n int32) Mem { return At(RBX, ptWord(n)) }
	g.MovRM(8, R12, At(RBX, slotDescAt))
	g.MovRM(8, R13, pt(ptIP))
	g.MovRM(8, RAX, pt(ptSP))
	g.OpRM(OpSub, 8, RAX, At(R12, slotDescRedZone))
	g.Lea(RSP, At(RAX, -leaveBlock))
	for _, put := range [][2]int32{{0, ptWords[RAX]}, {8, ptWords[R12]}, {16, ptWords[R13]}, {24, ptIP}, {48, ptSP}} {
		g.MovRM(8, RAX, pt(put[1]))
		g.MovMR(8, At(RSP, put[0]), RAX)
	}
	g.MovMI(8, At(RSP, 32), userCS)
	g.MovMI(8, At(RSP, 56), userDS)
	g.Pushfq()
	g.Pop(RAX)
	const changes = statusFlags | directionFlag
	g.OpRI(OpAnd, 4, RAX, ^int32(changes))
	g.MovRM(4, RCX, pt(ptFlags))
	g.OpRI(OpAnd, 4, RCX, changes)
	g.OpRR(OpOr, 8, RAX, RCX)
	g.MovMR(8, At(RSP, 40), RAX)
	g.keyOf(R12, RBX)
	for _, r := range []Reg{RCX, RDX, R11} {
		g.MovRM(8, r, pt(ptWords[r]))
	}
	g.loadKept(keptRegs)
	g.MovMI(8, At(R12, 0), 0)
	g.Pop(RAX)
	g.Pop(R12)
	g.Pop(R13)
	g.Raw(0x48, 0xcf) // iretq
}
