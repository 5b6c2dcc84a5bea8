package amd64

import (
	"encoding/binary"
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

// What a module is told of a call lies in a block for each instance of the probe's pool:
//
//	0   the instance's key, once the entry handler has returned 0: only then the return handler runs
//	16  struct kretprobe_instance (linux/kprobes.h), with the call's own data at its end
const (
	blockMark = 0
	blockRI   = 16
	riOf      = 0
	riReturn  = 8
	riTask    = 16
	riFrame   = 24
	riData    = 32
)

// SlotBlock is the size of the block of a call with so many bytes of data.
func SlotBlock(data int) int { return blockRI + riData + (data+15)&^15 }

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

// SlotSize is the bytes of a slot.
const SlotSize = 1024

// The layout of a slot. struct __kp_slot_data of linux/kp_runtime.h stands at its start.
const (
	slotCPU     = 0
	slotAtomic  = 4
	slotFrameAt = 256 // the frame of the detour
	slotBackTo  = 264 // where the gate goes back to
	slotDescAt  = 272 // the descriptor
	slotStack   = 288 // the end of the handler's stack; 0: it has the thread's
	slotMXCSR   = 296 // the thread's, and behind it the handler's
	slotCall    = 304 // the instance of a return probe's call
	slotAction  = 312 // 32 bits: arch.Action
	slotRuns    = 496 // how many handlers have run in it
	slotBlockAt = 504 // the call's struct kretprobe_instance
	slotPtRegs  = 320 // 21 words, to 488
	slotVector  = 512 // XMM0 to XMM15
)

// The words of struct pt_regs.
const (
	ptOrigAX = 15
	ptIP     = 16
	ptCS     = 17
	ptFlags  = 18
	ptSP     = 19
	ptSS     = 20
)

// ptWords are the places of the general registers.
var ptWords = [...]int32{
	RAX: 10, RCX: 11, RDX: 12, RBX: 5, RSP: ptSP, RBP: 4, RSI: 13, RDI: 14, R8: 9, R9: 8, R10: 7, R11: 6, R12: 3, R13: 2, R14: 1, R15: 0,
}

func ptWord(n int32) int32 { return slotPtRegs + 8*n }

// SlotDesc is the descriptor of a handler that runs in line.
type SlotDesc struct {
	Handler uint64 // its address
	Of      uint64 // its first argument
	IP      uint64 // in its registers
	Missed  uint64 // address of a 64-bit count of misses
	Off     uint32 // not 0: it is not called any more
	Abandon uint64 // where its gate goes on without it: see NewSlotGate
	RedZone uint64 // bytes below the stack pointer that the probed function may use: 128, and 0 in a Go function
	// Of a return probe: its pool, and the blocks of its instances.
	Pool, Blocks, Block uint64 // addresses, and the bytes of a block
	Stride              uint32 // arch.Pool.Stride
	Marked              uint32 // not 0: there is an entry handler
	Fault               uint64 // address of the fault handler (slotfault.go); 0: there is none
}

// The layout of a descriptor.
const (
	SlotDescSize = 96 // bytes

	slotDescHandler = 0
	slotDescOf      = 8
	slotDescIP      = 16
	slotDescMissed  = 24
	SlotDescOff     = 32 // 32 bits; not 0: it is not called any more
	SlotDescFaults  = 36 // 32 bits: how often something has faulted in it
	slotDescAbandon = 40
	slotDescRedZone = 48
	slotDescPool    = 56
	slotDescBlocks  = 64
	slotDescBlock   = 72
	slotDescStride  = 80
	slotDescMarked  = 84
	slotDescFault   = 88
)

// Put writes a descriptor to its memory.
func (d *SlotDesc) Put(b []byte) {
	binary.LittleEndian.PutUint64(b[slotDescHandler:], d.Handler)
	binary.LittleEndian.PutUint64(b[slotDescOf:], d.Of)
	binary.LittleEndian.PutUint64(b[slotDescIP:], d.IP)
	binary.LittleEndian.PutUint64(b[slotDescMissed:], d.Missed)
	binary.LittleEndian.PutUint64(b[SlotDescOff:], uint64(d.Off))
	binary.LittleEndian.PutUint64(b[slotDescAbandon:], d.Abandon)
	binary.LittleEndian.PutUint64(b[slotDescRedZone:], d.RedZone)
	binary.LittleEndian.PutUint64(b[slotDescPool:], d.Pool)
	binary.LittleEndian.PutUint64(b[slotDescBlocks:], d.Blocks)
	binary.LittleEndian.PutUint64(b[slotDescBlock:], d.Block)
	binary.LittleEndian.PutUint32(b[slotDescStride:], d.Stride)
	binary.LittleEndian.PutUint32(b[slotDescMarked:], d.Marked)
	binary.LittleEndian.PutUint64(b[slotDescFault:], d.Fault)
}

// PutSlot prepares the memory of slot n, which lies at addr. stack is the end of a stack for handlers; 0: they have the thread's.
func PutSlot(b []byte, addr uint64, n int, stack uint64) {
	clear(b[:SlotSize])
	put := binary.LittleEndian.PutUint64
	put(b[slotCPU:], uint64(n)|1<<32)
	put(b[slotStack:], stack)
	for i := range 2 {
		put(b[taskMM+8*i:], addr+slotMM)
	}
	for i := range 3 {
		put(b[taskLeader+8*i:], addr+slotTask)
	}
}

// SlotRun is a run of a handler as its slot tells of it.
type SlotRun struct {
	Key    uint64 // the FS base of its thread
	Frame  uint64 // the stack pointer in the detour; 0: it has just begun
	BackTo uint64 // where the gate goes back to
	Desc   uint64 // of the handler
	Run    uint64 // its number among those of the slot
	Start  bool   // it is no handler, but the start or the end of a module
}

// ReadSlot reads the run of a key out of a copy of its slot. Of the start or the end of a module there is the key alone: all else is what a handler has left that ran
// there before.
func ReadSlot(key uint64, slot []byte) SlotRun {
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(slot[at:]) }
	if binary.LittleEndian.Uint32(slot[slotAtomic:]) == 0 {
		return SlotRun{Key: key, Start: true}
	}
	return SlotRun{Key: key, Frame: word(slotFrameAt), BackTo: word(slotBackTo), Desc: word(slotDescAt), Run: word(slotRuns)}
}

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
