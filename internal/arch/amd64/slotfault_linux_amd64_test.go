package amd64

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// Where a test of fault handlers has the fault handler, and what it and the handler tell, behind the descriptor's log.
const (
	lineFaulted = lineHandler + 0x1000

	toldFaults, toldTrap, toldArg = 64, 72, 80

	toldSP    = 88    // of the handler where it faults
	toldEnd   = 96    // what it loads as its stack pointer in the end
	toldRegs  = 0x100 // 21 words: the registers that the fault handler was told of
	toldAfter = 0x200 // 17 words: those that the handler has afterwards, in the order of ptPushed, its flags and its stack pointer
	toldXMM   = 0x300 // XMM0 to XMM15 then
	setXMM    = 0x400 // and before

	lineFaultMask = 0x5a5a_0f0f_1234_5678
	faultDown     = 64 // bytes by which the fault handler lowers the stack pointer
)

// patternOf is what a register has where a handler faults.
func patternOf(r Reg) uint64 { return 0x1111111111111111*uint64(r) ^ 0xa5 }

// faulting makes a handler that faults by some instructions, with a pattern in all registers, and tells what they are behind them. It gives where that is.
func (a *arena) faulting(fault func(*Asm)) (at, after uint64) {
	a.t.Helper()
	h := NewAsm(lineHandler)
	log := lineDesc(0) + lineLog
	h.Lock().IncM(8, At(RDI, lineCalls))
	kept := []Reg{RBX, RBP, R12, R13, R14, R15}
	for _, r := range kept {
		h.Push(r)
	}
	h.MovMR(8, At(RDI, toldEnd), RSP)
	for i := range int32(16) {
		h.xmm(0xf10, i, At(RDI, setXMM+16*i))
	}
	h.Lea(RSP, At(RSP, -0x80))
	h.MovMR(8, At(RDI, toldSP), RSP)
	h.Raw(0xfd) // std
	for r := RAX; r <= R15; r++ {
		if r != RSP {
			h.MovRI(r, patternOf(r))
		}
	}
	from := h.Here()
	fault(h)
	h.Ud2()
	to := h.Here()
	h.Push(RSP)
	h.Pushfq()
	for _, r := range ptPushed {
		h.Push(r)
	}
	h.Cld()
	h.MovRR(8, RSI, RSP)
	h.MovRI(RDI, log+toldAfter)
	h.MovRI(RCX, 17)
	h.Raw(0xf3, 0x48, 0xa5) // rep movsq
	h.MovRI(RDI, log)
	for i := range int32(16) {
		h.xmm(0xf11, i, At(RDI, toldXMM+16*i))
	}
	h.MovRM(8, RSP, At(RDI, toldEnd))
	for _, r := range slices.Backward(kept) {
		h.Pop(r)
	}
	h.OpRR(OpXor, 4, RAX, RAX)
	h.Ret()
	text, err := h.Finish()
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(lineHandler), text)
	return h.LabelAddr(from), h.LabelAddr(to)
}

// faultHandler makes a fault handler that tells what it is told, changes all registers, and returns a result. Or it faults itself.
func (a *arena) faultHandler(after uint64, result uint64, faults bool) {
	a.t.Helper()
	h := NewAsm(lineFaulted)
	log := lineDesc(0) + lineLog
	h.MovMR(8, At(RDI, toldTrap), RDX)
	h.MovMR(8, At(RDI, toldArg), RSI)
	h.Lock().IncM(8, At(RDI, toldFaults))
	for i := range int32(21) {
		h.MovRM(8, RAX, At(RSI, 8*i))
		h.MovMR(8, At(RDI, toldRegs+8*i), RAX)
	}
	h.MovRI(RDX, lineFaultMask)
	for r, word := range ptWords {
		if Reg(r) != RSP {
			h.OpMR(OpXor, 8, At(RSI, 8*word), RDX)
		}
	}
	h.OpMI(OpSub, 8, At(RSI, 8*ptSP), faultDown)
	h.MovRI(RDX, after)
	h.MovMR(8, At(RSI, 8*ptIP), RDX)
	h.OpMI(OpXor, 8, At(RSI, 8*ptFlags), statusFlags|directionFlag)
	h.OpMI(OpAnd, 8, At(RSI, 8*ptFlags), ^alignmentFlag)
	for i := range int32(16) {
		h.xmm(0xf10, i, At(RDI, toldRegs))
	}
	if faults {
		h.Ud2()
	}
	for _, r := range []Reg{RCX, RDX, RSI, RDI, R8, R9, R10, R11} {
		h.MovRI(r, 0xbad0bad0bad0bad0)
	}
	h.MovRI(RAX, result)
	h.Ret()
	text, err := h.Finish()
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(lineFaulted), text)
	a.put64(lineDesc(0)+slotDescFault, lineFaulted)
	for i := range uint64(32) {
		a.put64(log+setXMM+8*i, 0x0123456789abcdef*(i+1))
	}
}

// faultCases are instructions that fault, and the trap numbers that they lead to (SDM vol. 3A, table 6-1).
var faultCases = []struct {
	name string
	trap uint64
	emit func(*Asm)
}{
	{"page", trapPage, func(h *Asm) { h.MovRM(8, RAX, At(RAX, 0)) }},             // address 0xa5
	{"protection", trapProtection, func(h *Asm) { h.MovRM(8, RAX, At(RBX, 0)) }}, // no canonical address
	{"undefined", trapUndefined, func(h *Asm) { h.Ud2() }},
	{"division", trapDivide, func(h *Asm) {
		h.OpRR(OpXor, 4, RCX, RCX)
		h.Raw(0x48, 0xf7, 0xf1) // div %rcx
	}},
	{"alignment", trapAlignment, func(h *Asm) {
		h.Pushfq()
		h.OpMI(OpOr, 4, At(RSP, 0), alignmentFlag)
		h.Popfq()
		h.MovRM(8, RAX, At(RSP, 1))
	}},
}

// TestSlotFaultHandler has handlers fault in all ways: the fault handler is told of the registers and the trap, and the handler goes on with the registers
// that it has made of them, at its stack pointer, and with its vector registers. The thread's own are as they were.
func TestSlotFaultHandler(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range faultCases {
		for _, stacks := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(11, 7))
				a := newArena(t, child)
				a.faultProbe(SlotPre, stacks)
				at, after := a.faulting(c.emit)
				a.faultHandler(after, 1, false)
				a.handler()
				const runs = 10
				for range runs {
					a.add(a.directed(r))
				}
				a.run()
				a.freed()
				log := lineDesc(0) + lineLog
				calls, faults := a.get64(log+lineCalls), a.get64(log+toldFaults)
				if calls != runs || faults != runs || a.get64(lineDesc(0)+SlotDescOff) != 0 || a.get64(lineDesc(0)+lineMissed) != 0 {
					t.Fatalf("%d calls and %d faults of %d runs, state %#x", calls, faults, runs, a.get64(lineDesc(0)+SlotDescOff))
				}
				a.checkFault(at, c.trap)
			})
		}
	}
}

// faultProbe has a handler at a function that consists of a nop and a return.
func (a *arena) faultProbe(kind SlotKind, stacks bool) {
	a.t.Helper()
	a.slotGates(kind, true, stacks)
	run := a.slotRuntime(0)
	gate, err := NewSlotGate(arenaGate, kind, SlotGateEnv{Keys: lineKeys, Slots: lineSlots, Groups: lineGroups, Vectors: true})
	if err != nil {
		a.t.Fatal(err)
	}
	a.faults = append(a.faults, FaultEntry{Lo: lineHandler, Hi: lineRuntime, To: run.Fault, Called: true})
	// nopl 0(%rax,%rax,1); ret
	a.probe(hexBytes(a.t, "0f1f440000 c3"), map[uint64][]arch.ProbeOp{0: {{Event: 7, Role: arch.RoleCall, Call: a.inLine(0)}}}, arch.Policy{Force: arch.TacticJump})
	a.put64(lineDesc(0)+slotDescAbandon, gate.Abandon)
}

// checkFault compares what the fault handler was told, and what the handler had afterwards, in the last run.
func (a *arena) checkFault(at, trap uint64) {
	a.t.Helper()
	log := lineDesc(0) + lineLog
	pt := func(word int32) uint64 { return a.get64(log + toldRegs + 8*uint64(word)) }
	if got := a.get64(log + toldTrap); got != trap {
		a.t.Errorf("trap %d, not %d", got, trap)
	}
	if ip := pt(ptIP); ip < at || ip >= at+24 {
		a.t.Errorf("it has faulted at %#x, and the instructions begin at %#x", ip, at)
	}
	want := map[int32]uint64{ptSP: a.get64(log + toldSP), ptCS: userCS, ptSS: userDS, ptOrigAX: ^uint64(0)}
	changed := func(r Reg) bool { return trap == trapDivide && r == RCX } // by the instructions before
	for r, word := range ptWords {
		if Reg(r) != RSP {
			want[word] = patternOf(Reg(r))
			if changed(Reg(r)) {
				want[word] = 0
			}
		}
	}
	for word, v := range want {
		if got := pt(word); got != v {
			a.t.Errorf("word %d was %#x, not %#x", word, got, v)
		}
	}
	if flags := pt(ptFlags); flags&directionFlag == 0 || (flags&uint64(alignmentFlag) != 0) != (trap == trapAlignment) {
		a.t.Errorf("flags were %#x", flags)
	}
	after := func(i int) uint64 { return a.get64(log + toldAfter + 8*uint64(len(ptPushed)-1-i)) }
	for i, r := range ptPushed {
		if got, v := after(i), pt(ptWords[r])^lineFaultMask; got != v {
			a.t.Errorf("register %d became %#x, not %#x", r, got, v)
		}
	}
	const told = statusFlags | directionFlag | uint64(alignmentFlag)
	if got, v := after(-1)&told, (pt(ptFlags)^(statusFlags|directionFlag))&^uint64(alignmentFlag)&told; got != v {
		a.t.Errorf("flags became %#x, not %#x", got, v)
	}
	if got, v := after(-2), pt(ptSP)-faultDown; got != v {
		a.t.Errorf("the stack pointer became %#x, not %#x", got, v)
	}
	for i := range uint64(32) {
		if got, v := a.get64(log+toldXMM+8*i), a.get64(log+setXMM+8*i); got != v {
			a.t.Errorf("half %d of XMM%d became %#x, not %#x", i%2, i/2, got, v)
		}
	}
}

// TestSlotFaultAbandoned has fault handlers that return 0, that fault themselves, and that get no stack: the handler is abandoned, and not called again.
func TestSlotFaultAbandoned(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range []struct {
		name   string
		faults bool
		sp     uint64 // that the handler has where it faults; 0: its own
		told   uint64 // how often the fault handler begins
	}{{"returns 0", false, 0, 1}, {"faults", true, 0, 1}, {"no stack", false, 0xbad0bad0bad0, 0}} {
		for _, f := range faultCases {
			if f.trap == trapAlignment && c.sp != 0 {
				continue // it needs the stack
			}
			t.Run(c.name+", "+f.name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(12, 7))
				a := newArena(t, child)
				a.faultProbe(SlotPre, false)
				_, after := a.faulting(func(h *Asm) {
					if c.sp != 0 {
						h.MovRI(RSP, c.sp)
					}
					f.emit(h)
				})
				a.faultHandler(after, 0, c.faults)
				a.handler()
				for range 10 {
					a.add(a.directed(r))
				}
				a.run()
				a.freed()
				log := lineDesc(0) + lineLog
				if calls, told, state := a.get64(log+lineCalls), a.get64(log+toldFaults), a.get64(lineDesc(0)+SlotDescOff); calls != 1 || told != c.told || state != 1|1<<32 {
					t.Errorf("%d calls, %d of the fault handler, state %#x", calls, told, state)
				}
			})
		}
	}
}
