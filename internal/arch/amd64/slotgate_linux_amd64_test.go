package amd64

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// Where a test of gates of handlers in line has what: the handler's code behind the gate's, descriptors with a log each, and the slots.
const (
	lineHandler = arenaGate + 0x2000
	lineDescs   = arenaCalls
	lineKeys    = arenaCalls + 0x40000
	lineSlots   = arenaCalls + 0x41000
	lineStacks  = arenaCalls + 0x60000
	lineGroups  = 2 // log2
	lineCount   = 8 << lineGroups

	lineDescSize = 0x4000
	lineLog      = 128          // behind the descriptor, where its first argument points to
	lineMissed   = SlotDescSize // the count of misses, in the descriptor's memory
)

// Words of a log, and of what is told of each call in it.
const (
	lineCalls  = 0
	lineResult = 8
	lineMask   = 16 // every general register but the stack pointer is changed by xor with it
	lineIP     = 24 // what the instruction pointer becomes, if it is not 0
	lineFlag   = 32 // the flags are changed by xor with it
	lineTold   = 64

	lineToldSize = 256
	lineTolds    = 32
	lineFlags    = 21 * 8 // those of the handler itself, and its stack pointer
	lineSP       = 22 * 8
	lineArg      = 23 * 8 // the third one
	lineRegs     = 24 * 8 // the second one
	lineMXCSR    = 25 * 8
)

// slotGates installs a gate, and the handler that all descriptors have: it tells its registers, and changes what it is told to change.
func (a *arena) slotGates(kind SlotKind, vectors, stacks bool) {
	a.t.Helper()
	gate, err := NewSlotGate(arenaGate, kind, SlotGateEnv{Keys: lineKeys, Slots: lineSlots, Groups: lineGroups, Vectors: vectors, Stacks: stacks})
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(arenaGate), gate.Code)
	for n := range lineCount {
		stack := uint64(0)
		if stacks {
			stack = lineStacks + uint64(n+1)*0x800
		}
		at := lineSlots + uint64(n)*SlotSize
		PutSlot(a.at(at), at, n, stack)
	}
	h := NewAsm(lineHandler)
	h.Pushfq()
	h.MovRI(RAX, 1)
	h.Lock().Xadd(8, At(RDI, lineCalls), RAX)
	h.OpRI(OpAnd, 4, RAX, lineTolds-1)
	h.ImulRRI(8, RAX, RAX, lineToldSize)
	h.Lea(RCX, AtIndex(RDI, RAX, 1, lineTold))
	h.MovMR(8, At(RCX, lineArg), RDX)
	h.MovMR(8, At(RCX, lineRegs), RSI)
	if vectors {
		h.mxcsr(storeMXCSR, At(RCX, lineMXCSR))
	}
	for i := range int32(21) {
		h.MovRM(8, RAX, At(RSI, 8*i))
		h.MovMR(8, At(RCX, 8*i), RAX)
	}
	h.Pop(RAX)
	h.MovMR(8, At(RCX, lineFlags), RAX)
	h.MovMR(8, At(RCX, lineSP), RSP)
	h.MovRM(8, RDX, At(RDI, lineMask))
	for r, word := range ptWords {
		if Reg(r) != RSP {
			h.OpMR(OpXor, 8, At(RSI, 8*word), RDX)
		}
	}
	h.MovRM(8, RDX, At(RDI, lineFlag))
	h.OpMR(OpXor, 8, At(RSI, 8*ptFlags), RDX)
	stays := h.Label()
	h.MovRM(8, RDX, At(RDI, lineIP))
	h.TestRR(8, RDX, RDX)
	h.Jcc(CondE, stays)
	h.MovMR(8, At(RSI, 8*ptIP), RDX)
	h.Bind(stays)
	h.MovRM(8, R11, At(RDI, lineResult))
	for _, r := range []Reg{RCX, RDX, RSI, RDI, R8, R9, R10} {
		h.MovRI(r, 0xbad0bad0bad0bad0)
	}
	if vectors {
		for i := range int32(16) {
			h.xmm(0xf10, i, At(RSP, -128))
		}
		h.MovMI(4, At(RSP, -8), 0x3f80) // numbers are rounded down
		h.mxcsr(loadMXCSR, At(RSP, -8))
	}
	h.MovRR(8, RAX, R11)
	h.Ret()
	text, err := h.Finish()
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(lineHandler), text)
}

func lineDesc(i int) uint64 { return lineDescs + uint64(i)*lineDescSize }

// inLine makes descriptor i of the handler.
func (a *arena) inLine(i int) *arch.Call {
	at := lineDesc(i)
	d := SlotDesc{Handler: lineHandler, Of: at + lineLog, IP: 0x1234_5000 + uint64(i), Missed: at + lineMissed, RedZone: redZone}
	d.Put(a.at(at))
	return &arch.Call{Desc: at, Gate: arenaGate}
}

// inLineWork has a handler before every instruction of carryFunction.
func (a *arena) inLineWork(pool *arch.Pool) map[uint64][]arch.ProbeOp {
	work := countingWork(pool)
	for i, off := range carryPoints {
		work[off] = append([]arch.ProbeOp{{Event: 7, Role: arch.RoleCall, Call: a.inLine(i)}}, work[off]...)
	}
	return work
}

// freed checks that no slot is taken.
func (a *arena) freed() {
	a.t.Helper()
	for n := range uint64(lineCount) {
		if key := a.get64(lineKeys + 8*n); key != 0 && key != 0x1000+n {
			a.t.Errorf("slot %d is taken still: %#x", n, key)
		}
	}
}

// lineTelling gives what a call told, by the words of struct pt_regs.
func (a *arena) lineTelling(i int, n uint64, word uint64) uint64 {
	return a.get64(lineDesc(i) + lineLog + lineTold + n%lineTolds*lineToldSize + word)
}

// TestSlotGate has a handler in line before every instruction of a function: each sees the registers and flags of the thread, and nothing that
// the function uses changes, though the handler changes all that a C function may.
func TestSlotGate(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range []struct {
		name            string
		kind            SlotKind
		vectors, stacks bool
	}{{"pre", SlotPre, true, false}, {"post", SlotPost, false, false}, {"stacks", SlotPre, true, true}} {
		for _, tc := range tactics {
			t.Run(c.name+"_"+tc.name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(31, 7))
				a := newArena(t, child)
				a.slotGates(c.kind, c.vectors, c.stacks)
				a.crowd()
				work := a.inLineWork(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)})
				a.probe(hexBytes(t, carryFunction), work, tc.policy)
				a.handler()
				for range lineTolds {
					a.add(a.directed(r))
				}
				a.run()
				a.checkCounts(work)
				a.freed()
				for i := range carryPoints {
					if calls, missed := a.get64(lineDesc(i)+lineLog+lineCalls), a.get64(lineDesc(i)+lineMissed); calls != a.ctl.Did || missed != 0 {
						t.Fatalf("handler %d: %d calls and %d missed in %d runs", i, calls, missed, a.ctl.Did)
					}
					for n := range a.ctl.Did {
						a.checkInLine(i, n, c.kind, c.stacks)
						if got := a.lineTelling(i, n, lineMXCSR); c.vectors && got != defaultMXCSR {
							t.Fatalf("handler %d found %#x in MXCSR", i, got)
						}
					}
				}
			})
		}
	}
}

// checkInLine compares what a handler saw.
func (a *arena) checkInLine(i int, n uint64, kind SlotKind, stacks bool) {
	a.t.Helper()
	run := &a.runs[2*n+1]
	want := carryState(run.Regs, i)
	for r, word := range ptWords {
		if got := a.lineTelling(i, n, 8*uint64(word)); got != want[r] {
			a.t.Fatalf("handler %d saw %#x in register %d, want %#x", i, got, r, want[r])
		}
	}
	flags := a.lineTelling(i, n, 8*ptFlags)
	if got, want := flags&0xc1, carryFlags(run.Regs, run.Flags, i); got != want || flags&0x200 == 0 {
		a.t.Fatalf("handler %d saw flags %#x, want %#x among them", i, flags, want)
	}
	if df := run.Flags & directionFlag; flags&directionFlag != df {
		a.t.Fatalf("handler %d saw flags %#x, where the thread had %#x", i, flags, run.Flags)
	}
	for word, want := range map[uint64]uint64{ptIP: 0x1234_5000 + uint64(i), ptCS: userCS, ptSS: userDS, ptOrigAX: ^uint64(0)} {
		if got := a.lineTelling(i, n, 8*word); got != want {
			a.t.Fatalf("handler %d saw %#x in word %d, want %#x", i, got, word, want)
		}
	}
	sp, own := a.lineTelling(i, n, lineSP), a.lineTelling(i, n, lineFlags)
	if sp%16 != 8 || own&directionFlag != 0 {
		a.t.Fatalf("handler %d ran with its stack at %#x and flags %#x", i, sp, own)
	}
	if on := sp >= lineStacks && sp < lineStacks+lineCount*0x800; on != stacks || !on && want[RSP]-sp < redZone {
		a.t.Fatalf("handler %d ran at %#x, and the thread at %#x", i, sp, want[RSP])
	}
	if got := a.lineTelling(i, n, lineArg); kind == SlotPost && got != 0 {
		a.t.Fatalf("handler %d was told of flags %#x", i, got)
	}
	slot := a.lineTelling(i, n, lineRegs) - slotPtRegs - lineSlots
	if slot%SlotSize != 0 || slot/SlotSize%8 != strangers || slot/SlotSize >= lineCount {
		a.t.Fatalf("handler %d ran in the slot at %#x, where others have the first %d of each group", i, slot, strangers)
	}
	if cpu := a.get64(lineSlots+slot) & 0xffffffff; cpu != slot/SlotSize {
		a.t.Fatalf("slot %d is CPU %d", slot/SlotSize, cpu)
	}
}

// strangers is how many slots of each group others have.
const strangers = 3

// crowd has others take slots.
func (a *arena) crowd() {
	for n := range uint64(lineCount) {
		if n%8 < strangers {
			a.put64(lineKeys+8*n, 0x1000+n)
		}
	}
}

// directed is a.state with DF set in half of the states.
func (a *arena) directed(r *rand.Rand) (regs [16]uint64, flags uint64) {
	regs, flags = a.state(r)
	return regs, flags | r.Uint64()&directionFlag
}

// TestSlotGateUnderSignals has handlers called by handlers of signals, at each instruction of the detours, the gate and the handler once. A hit on top of
// a handler is a miss, and no other is.
func TestSlotGateUnderSignals(t *testing.T) {
	child := buildDetourChild(t)
	for _, vectors := range []bool{false, true} {
		r := rand.New(rand.NewPCG(18, 9))
		a := newArena(t, child)
		a.slotGates(SlotPre, vectors, false)
		a.crowd()
		work := a.inLineWork(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)})
		a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
		a.handler()
		a.add(a.state(r))
		a.nested(a.state(r))
		places := a.instructions()
		gate := uint64(0)
		for _, at := range []uint64{arenaGate, lineHandler} {
			for off := uint64(0); a.mem[at+off-arenaAddr] != 0; {
				in, err := Decode(a.at(at + off))
				if err != nil {
					t.Fatal(err)
				}
				places = append(places, at+off)
				gate++
				off += uint64(in.Len)
			}
		}
		a.put64(arenaActions, places...)
		a.ctl.Mode, a.ctl.Places, a.ctl.NPlaces = modeSteps, arenaActions, uint64(len(places))
		a.run()
		a.checkCounts(work)
		a.freed()
		misses := uint64(0)
		for i := range carryPoints {
			calls, missed := a.get64(lineDesc(i)+lineLog+lineCalls), a.get64(lineDesc(i)+lineMissed)
			if calls+missed != a.ctl.Did+a.ctl.DidNested {
				t.Errorf("handler %d: %d calls and %d missed in %d runs and %d on top of one", i, calls, missed, a.ctl.Did, a.ctl.DidNested)
			}
			misses = max(misses, missed)
		}
		if a.ctl.DidNested < uint64(len(places))/3 || misses < gate/3 || misses > gate {
			t.Errorf("%d of %d places were reached, %d of them, of %d, in a gate or a handler", a.ctl.DidNested, len(places), misses, gate)
		}
	}
}

// TestSlotGateChanges has a handler change all registers, and another one send the thread elsewhere.
func TestSlotGateChanges(t *testing.T) {
	child := buildDetourChild(t)
	const mask = 0x5a5a5a5a12345678
	for _, leaves := range []bool{false, true} {
		for _, tc := range tactics[1:] {
			r := rand.New(rand.NewPCG(3, 3))
			a := newArena(t, child)
			a.slotGates(SlotPre, true, false)
			// nopl 0(%rax,%rax,1); ret
			code := hexBytes(t, "0f1f440000 c3")
			a.probe(code, map[uint64][]arch.ProbeOp{0: {{Event: 7, Role: arch.RoleCall, Call: a.inLine(0)}}}, tc.policy)
			a.handler()
			log := lineDesc(0) + lineLog
			const flags = statusFlags | directionFlag
			a.put64(log+lineMask, mask)
			a.put64(log+lineFlag, flags)
			if leaves {
				copy(a.at(arenaProbed+0x100), []byte{0xc3})
				a.put64(log+lineResult, 1)
				a.put64(log+lineIP, arenaProbed+0x100)
			}
			for range 20 {
				a.add(a.directed(r))
				plain := &a.runs[len(a.runs)-2]
				plain.Flags ^= flags
				for i := range plain.Regs {
					if i != int(RSP) {
						plain.Regs[i] ^= mask
					}
				}
			}
			a.run()
			a.freed()
			if n := a.get64(log + lineCalls); n != 20 {
				t.Errorf("%d calls", n)
			}
		}
	}
}

// TestSlotGateOff has a handler that is not to be called any more, and slots that are all taken.
func TestSlotGateOff(t *testing.T) {
	child := buildDetourChild(t)
	for _, off := range []bool{false, true} {
		r := rand.New(rand.NewPCG(5, 5))
		a := newArena(t, child)
		a.slotGates(SlotPre, false, false)
		work := a.inLineWork(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)})
		a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
		a.handler()
		for i := range carryPoints {
			if off {
				a.at(lineDesc(i) + SlotDescOff)[0] = 1
			}
		}
		for n := range uint64(lineCount) {
			a.put64(lineKeys+8*n, 0x1000+n)
		}
		for range 10 {
			a.add(a.state(r))
		}
		a.run()
		a.checkCounts(work)
		for i := range carryPoints {
			want := a.ctl.Did
			if off {
				want = 0
			}
			if calls, missed := a.get64(lineDesc(i)+lineLog+lineCalls), a.get64(lineDesc(i)+lineMissed); calls != 0 || missed != want {
				t.Errorf("off %t: %d calls, %d missed, want %d", off, calls, missed, want)
			}
		}
	}
}

// TestReadSlot: the start of a module has a slot in which a handler ran before, and is not taken for that handler.
func TestReadSlot(t *testing.T) {
	b := make([]byte, SlotSize)
	PutSlot(b, 0x1000, 3, 0)
	for at, v := range map[int]uint64{slotFrameAt: 10, slotBackTo: 11, slotDescAt: 12, slotRuns: 13} {
		binary.LittleEndian.PutUint64(b[at:], v)
	}
	if r := ReadSlot(5, b); r != (SlotRun{Key: 5, Frame: 10, BackTo: 11, Desc: 12, Run: 13}) {
		t.Errorf("a handler: %+v", r)
	}
	binary.LittleEndian.PutUint32(b[slotAtomic:], 0)
	if r := ReadSlot(5, b); r != (SlotRun{Key: 5, Start: true}) {
		t.Errorf("a start: %+v", r)
	}
}
