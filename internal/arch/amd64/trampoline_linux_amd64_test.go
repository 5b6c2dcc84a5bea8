package amd64

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// trampolines puts stubs and tables of n functions into the arena.
func (a *arena) trampolines(n int) (ts []*arch.Trampoline) {
	a.t.Helper()
	lo := a.grow(2*TrampolinePiece-uint64(len(a.mem))%TrampolinePiece) + TrampolinePiece - 1
	lo &^= TrampolinePiece - 1
	copy(a.at(lo+TrampolineDist), PieceHeads(lo))
	for i := range n {
		t := TrampolineAt(lo, TrampolinePiece, arenaMapped, i)
		first, more, err := NewStubs(t)
		if err != nil {
			a.t.Fatal(err)
		}
		copy(a.at(t.Stubs), first)
		copy(a.at(t.More), more)
		ts = append(ts, t)
	}
	a.put64(arenaMapped, TrampolinePiece)
	return ts
}

func (a *arena) trampoline() *arch.Trampoline { return a.trampolines(1)[0] }

// arenaMapped is a word of its own, beside the one at arenaActive.
const arenaMapped = arenaActive + 64

// words gives the words of a trampoline's tables, the first and the further ones.
func (a *arena) words(t *arch.Trampoline) (ws []uint64) {
	for at := uint64(firstStub); at < TrampolineHead; at += stubSize {
		ws = append(ws, t.Table+at)
	}
	for at := uint64(0); at < trampolineMore; at += stubSize {
		ws = append(ws, t.More+TrampolineDist+at)
	}
	return ws
}

// inUse counts the stubs that stand for a return address.
func (a *arena) inUse(t *arch.Trampoline) (n int) {
	for _, at := range a.words(t) {
		if a.get64(at) != 0 {
			n++
		}
	}
	return n
}

// returns makes a trampoline lead to work.
func (a *arena) returns(t *arch.Trampoline, ws ...arch.ProbeOp) {
	a.t.Helper()
	d, err := NewReturnDetour(a.next, t, ws, &a.w)
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(d.Addr), d.Code)
	a.put64(t.Table, d.Addr)
	a.detour = append(a.detour, d)
	a.next = (a.next + uint64(len(d.Code)) + 63) &^ 63
	for _, x := range d.Fixups {
		a.faults = append(a.faults, FaultEntry{Lo: x.At, Hi: x.At + 1, To: x.To})
	}
}

func (a *arena) stray(t *arch.Trampoline) uint64 {
	n, _ := Stray(a.at(t.Table))
	return n
}

// tailing ends in a jump to what stands behind it, or where RSI is negative in a ret:
//
//	0 lea 5(%rdi),%rax   4 test %rsi,%rsi   7 js 16   9 jmp 32   16 ret
//	32 inc %rax   35 ret
const tailing = "488d4705 4885f6 7807 e912000000 cccc c3 cccccccccccccccccccccccccccccc 48ffc0 c3"

// returnWork is a return probe of a trampoline, and its pool.
func returnWork(event int, t *arch.Trampoline, p *arch.Pool) (entry, exit arch.ProbeOp) {
	prog := &fetch.Program{Fixed: 16, Return: true, Args: []fetch.Arg{
		{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RAX)}, Size: 8},
		{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Size: 8, Off: 8, AtEntry: true},
	}}
	entry = arch.ProbeOp{Event: event, Role: arch.RoleEntry, Prog: prog, Pool: p, Trampoline: t}
	exit = arch.ProbeOp{Event: event, Role: arch.RoleExit, Prog: prog, Pool: p, Instance: event, Trampoline: t}
	return entry, exit
}

// checkReturns holds an event to what it must have counted and recorded.
func (a *arena) checkReturns(event int, entries uint64) {
	a.t.Helper()
	var read uint64
	for _, rec := range a.records() {
		if rec.event != uint32(event) {
			continue
		}
		read++
		if to := u64At(rec.rec, 16); to != a.ctl.Landing && (to < arenaProbed || to >= arenaDetours) {
			a.t.Fatalf("event %d returns to 0x%x, not to 0x%x", event, to, a.ctl.Landing)
		}
	}
	lost, missed, unwound := a.counted(event, ring.CtrLost), a.counted(event, ring.CtrMissed), a.counted(event, ring.CtrUnwound)
	if read+lost != entries || missed+unwound != 0 {
		a.t.Errorf("event %d: %d entries: read %d, lost %d, missed %d, unwound %d", event, entries, read, lost, missed, unwound)
	}
}

// TestTrampolineKeepsState replaces the return address of a function that ends in a jump, for
// two events, and runs it from random states, undisturbed, under signals whose handler runs it
// too, and interrupted at each instruction of the detours.
func TestTrampolineKeepsState(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		for mode, name := range []string{"plain", "storm", "steps"} {
			t.Run(v.name+"_"+name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(11, uint64(mode)))
				a := newArena(t, child)
				v.set(a)
				if a.w.Go != nil {
					t.Skip("return addresses of Go are left alone")
				}
				tr := a.trampoline()
				pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
				in1, out1 := returnWork(1, tr, pool)
				in2, out2 := returnWork(2, tr, pool)
				a.probe(hexBytes(t, tailing), map[uint64][]arch.ProbeOp{0: {in1, in2}}, arch.Policy{})
				a.returns(tr, out1, out2)
				a.handler()
				for range []int{150, 50, 2}[mode] {
					a.add(a.state(r))
				}
				if mode != modePlain {
					a.nested(a.state(r))
					a.ctl.Mode, a.ctl.Rounds = uint64(mode), 1000
				}
				if mode == modeSteps {
					places := append(a.instructions(), tr.Stubs, tr.Stubs+1)
					a.put64(arenaActions, places...)
					a.ctl.Places, a.ctl.NPlaces = arenaActions, uint64(len(places))
				}
				a.run()
				for event := 1; event <= 2; event++ {
					a.checkReturns(event, a.ctl.Did+a.ctl.DidNested)
				}
				if n := a.stray(tr); n != 0 {
					t.Errorf("%d returns belonged to no call", n)
				}
			})
		}
	}
}

// TestTrampolineValues checks the values at a return that only the jump's target brings.
func TestTrampolineValues(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	tr := a.trampoline()
	pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
	in, out := returnWork(1, tr, pool)
	a.probe(hexBytes(t, tailing), map[uint64][]arch.ProbeOp{0: {in}}, arch.Policy{})
	a.returns(tr, out)
	a.handler()
	for i := range uint64(20) {
		a.add([16]uint64{RSP: arenaStack, RDI: 100 * i, RSI: -(i & 1)}, 0x202)
	}
	a.run()
	a.checkReturns(1, 20)
	for i, rec := range a.records() {
		arg, val := u64At(rec.rec, 32), u64At(rec.rec, 24)
		if want := uint64(100*i + 6 - i&1); arg != uint64(100*i) || val != want {
			t.Errorf("call %d: %d returned %d, want %d", i, arg, val, want)
		}
	}
}

// descending calls itself RDI times from two places in turn, and ends in a jump:
//
//	0 sub $1,%rdi   4 jb 26   6 test $1,%dil   10 je 19   12 call 0   17 jmp 26   19 call 0
//	24 nop;nop   26 jmp 32   32 inc %rax   35 ret
const descending = "4883ef01 7214 40f6c701 7407 e8efffffff eb07 e8e8ffffff 9090 e901000000 cc 48ffc0 c3"

// TestTrampolineDepth pairs entries and returns of calls within one another, of a call from
// one place and of one from another.
func TestTrampolineDepth(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	tr := a.trampoline()
	pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(1)}
	in, out := returnWork(1, tr, pool)
	a.probe(hexBytes(t, descending), map[uint64][]arch.ProbeOp{0: {in}}, arch.Policy{})
	a.returns(tr, out)
	a.handler()
	a.add([16]uint64{RSP: arenaStack, RDI: 40}, 0x202)
	a.run()
	a.checkReturns(1, 41)
	if used := a.inUse(tr); used != 3 || a.stray(tr) != 0 {
		t.Errorf("%d stubs are in use for 3 places, %d returns belong to no call", used, a.stray(tr))
	}
}

// pingpong is two functions that jump to each other RDI times in all:
//
//	0 sub $1,%rdi   4 jb 32   6 jmp 16   16 sub $1,%rdi   20 jb 32   22 jmp 0   32 ret
const pingpong = "4883ef01 721a e905000000 cccccccccc 4883ef01 720a e9e5ffffff cccccccccc c3"

// TestTrampolineChain: two functions that jump to each other, both with trampolines, pile no
// stubs up, however often they do, and each call of either has its return.
func TestTrampolineChain(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	ts := a.trampolines(2)
	f, g := ts[0], ts[1]
	pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(1)}
	in1, out1 := returnWork(1, f, pool)
	in2, out2 := returnWork(2, g, pool)
	a.probe(hexBytes(t, pingpong), map[uint64][]arch.ProbeOp{0: {in1}, 16: {in2}}, arch.Policy{})
	a.returns(f, out1)
	a.returns(g, out2)
	a.handler()
	for range 3 {
		a.add([16]uint64{RSP: arenaStack, RDI: 99}, 0x202)
	}
	a.run()
	returns := map[uint32]int{}
	for _, rec := range a.records() {
		returns[rec.event]++
	}
	for event, tr := range map[uint32]*arch.Trampoline{1: f, 2: g} {
		used := a.inUse(tr)
		unwound, missed := a.counted(int(event), ring.CtrUnwound), a.counted(int(event), ring.CtrMissed)
		if used == 0 || used > 10 || returns[event] != 3*50 || unwound+missed != 0 {
			t.Errorf("event %d: %d returns, %d unwound, %d missed, %d stubs are in use", event, returns[event], unwound, missed, used)
		}
		if n := a.stray(tr); n != 0 {
			t.Errorf("event %d: %d returns belong to no call", event, n)
		}
	}
}

// TestTrampolineFull: a call from one place more than there are stubs is missed, and returns.
func TestTrampolineFull(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprint(off), func(t *testing.T) {
			a := newArena(t, buildDetourChild(t))
			tr := a.trampoline()
			if off {
				tr.Off = arenaActive
				a.put64(arenaActive, 1)
			} else {
				for i, at := range a.words(tr) {
					a.put64(at, 0x1000+uint64(i))
				}
			}
			pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
			in, out := returnWork(1, tr, pool)
			a.probe(hexBytes(t, tailing), map[uint64][]arch.ProbeOp{0: {in}}, arch.Policy{})
			a.returns(tr, out)
			a.handler()
			for range 3 {
				a.add([16]uint64{RSP: arenaStack}, 0x202)
			}
			a.run()
			if n, missed := len(a.records()), a.counted(1, ring.CtrMissed); n != 0 || missed != 3 || a.stray(tr) != 0 {
				t.Errorf("%d returns, %d missed", n, missed)
			}
			for i := range uint64(1<<pool.Slots + bucketLen) {
				if u64At(a.at(pool.Base+i<<pool.Stride), 0) != 0 {
					t.Fatalf("slot %d is still taken", i)
				}
			}
		})
	}
}

// TestTrampolineStray: returns of calls of which no event knows any more go where they are to,
// through the common code and through the bare one.
func TestTrampolineStray(t *testing.T) {
	for _, bare := range []bool{false, true} {
		t.Run(fmt.Sprint(bare), func(t *testing.T) {
			a := newArena(t, buildDetourChild(t))
			tr := a.trampoline()
			pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
			in, out := returnWork(1, tr, pool)
			out.Instance = 3 // looks for the calls of another event
			a.probe(hexBytes(t, tailing), map[uint64][]arch.ProbeOp{0: {in}}, arch.Policy{})
			if !bare {
				a.returns(tr, out)
			}
			a.handler()
			for range 5 {
				a.add([16]uint64{RSP: arenaStack}, 0x202)
			}
			a.run()
			n, slot := Stray(a.at(tr.Table))
			if want := map[bool]uint64{false: 5}[bare]; n != want || len(a.records()) != 0 {
				t.Errorf("%d returns belong to no call, want %d; %d records", n, want, len(a.records()))
			}
			if !bare && (slot == 0 || slot > arenaStack) {
				t.Errorf("the last one stood at 0x%x", slot)
			}
		})
	}
}

// unwinding is what a walk over the stack does of _Unwind_Find_FDE: it returns its arguments.
//
//	0 mov %rdi,%rax   3 mov -16(%rsi),%rdx   7 ret
const unwinding = "4889f8 488b56f0 c3"

// TestTrampolineUnwind asks about stubs, nested ones too, and about all else.
func TestTrampolineUnwind(t *testing.T) {
	const real, bases = 0x40001237, arenaData + 0x100
	child := buildDetourChild(t)
	for _, c := range []struct {
		name         string
		pc, ra       uint64 // + stubs if not above a piece
		wantPC, want uint64
	}{
		{"call", 32 - 1, 32, real - 1, real},
		{"interrupted", 32, 32, real, real},
		{"nested", 40 - 1, 40, real - 1, real},
		{"without_context", 32 - 1, 0x77777777, real - 1, 0x77777777},
		{"never_used", 48 - 1, 48, 48 - 1, 48},
		{"bare_code", 16, 16, 16, 16},
		{"further", trampolineHeads - 1, trampolineHeads, real - 1, real},
		{"table", TrampolineDist + 40, TrampolineDist + 40, TrampolineDist + 40, TrampolineDist + 40},
		{"behind", TrampolinePiece, TrampolinePiece, TrampolinePiece, TrampolinePiece},
		{"before", ^uint64(1), 32, ^uint64(1), 32},
		{"elsewhere", 0x40001000, 0x40001001, 0x40001000, 0x40001001},
		{"not_mapped", 32 - 1, 32, 32 - 1, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, child)
			tr := a.trampoline()
			stub := func(v uint64) uint64 {
				if v <= TrampolinePiece || v > 1<<63 {
					return tr.Stubs + v
				}
				return v
			}
			a.put64(tr.Table+32, real)
			a.put64(tr.Table+40, tr.Stubs+32)
			a.put64(tr.More+TrampolineDist, real)
			if c.name == "not_mapped" {
				a.put64(arenaMapped, 0)
			}
			a.probe(hexBytes(t, unwinding), map[uint64][]arch.ProbeOp{0: {{Event: 1, Role: arch.RoleUnwind, Trampoline: tr}}}, arch.Policy{})
			a.handler()
			a.put64(bases-16, stub(c.ra))
			a.runs = append(a.runs, detourRun{Regs: [16]uint64{RSP: arenaStack, RDI: stub(c.pc), RSI: bases}, Flags: 0x202, PC: arenaProbed})
			a.run()
			if pc, ra := a.runs[0].Out[RAX], a.get64(bases-16); pc != stub(c.wantPC) || ra != stub(c.want) {
				t.Errorf("asked about 0x%x, 0x%x, want 0x%x, 0x%x", pc, ra, stub(c.wantPC), stub(c.want))
			}
		})
	}
}

// putBack has the detours interrupted at each of their instructions, and what a tracer does there that takes
// all out: real return addresses stand where stubs stood.
func (a *arena) putBack(ts ...*arch.Trampoline) {
	a.t.Helper()
	a.ctl.Mode, a.ctl.StubWord = modeSteps, TrampolineDist
	places := a.instructions()
	var stubs []uint64
	for _, t := range ts {
		for _, at := range a.words(t) {
			stubs = append(stubs, at-TrampolineDist)
		}
	}
	a.ctl.Stubs, a.ctl.NStubs = a.grow(uint64(8*len(stubs))), uint64(len(stubs))
	a.put64(a.ctl.Stubs, stubs...)
	a.put64(arenaActions, places...)
	a.ctl.Places, a.ctl.NPlaces = arenaActions, uint64(len(places))
	a.run()
	if want := uint64(len(places)) / 2; a.ctl.DidNested < want {
		a.t.Errorf("interrupted at %d of %d places", a.ctl.DidNested, len(places))
	}
}

// TestTrampolinePutBack: functions that jump to each other, both with trampolines, return to where they were
// called, at whichever instruction of the detours their return addresses are put back.
func TestTrampolinePutBack(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	ts := a.trampolines(2)
	pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(1)}
	in1, out1 := returnWork(1, ts[0], pool)
	in2, out2 := returnWork(2, ts[1], pool)
	in3, out3 := returnWork(3, ts[0], pool)
	a.probe(hexBytes(t, pingpong), map[uint64][]arch.ProbeOp{0: {in1, in3}, 16: {in2}}, arch.Policy{})
	a.returns(ts[0], out3, out1)
	a.returns(ts[1], out2)
	a.handler()
	a.add([16]uint64{RSP: arenaStack, RDI: 5}, 0x202)
	a.putBack(ts...)
}

// TestTrampolineUnwindPutBack asks about stubs while return addresses are put back.
func TestTrampolineUnwindPutBack(t *testing.T) {
	const real, bases = arenaData + 0x1237, arenaData + 0x100
	a := newArena(t, buildDetourChild(t))
	tr := a.trampoline()
	a.put64(tr.Table+32, real)
	a.put64(tr.Table+40, tr.Stubs+32)
	// mov %rcx,-16(%rsi), then as unwinding
	a.probe(hexBytes(t, "48894ef0"+unwinding), map[uint64][]arch.ProbeOp{4: {{Event: 1, Role: arch.RoleUnwind, Trampoline: tr}}}, arch.Policy{})
	a.handler()
	a.add([16]uint64{RSP: arenaStack, RDI: real - 1, RSI: bases, RCX: real}, 0x202)
	a.runs[1].Regs[RDI], a.runs[1].Regs[RCX] = tr.Stubs+40-1, tr.Stubs+40
	a.ctl.Free |= 1<<RCX | 1<<RDI
	a.ctl.Search, a.ctl.SearchEnd = bases-16, bases
	a.putBack(tr)
}

// TestTrampolineCallers calls a function from ever more places, more than there are stubs: each call
// returns to its own, is seen, or is missed; and a place has one stub, however often it calls.
func TestTrampolineCallers(t *testing.T) {
	const calls = TrampolineCalls + 100
	a := newArena(t, buildDetourChild(t))
	tr := a.trampoline()
	pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
	in, out := returnWork(1, tr, pool)
	a.probe(hexBytes(t, tailing), map[uint64][]arch.ProbeOp{0: {in}}, arch.Policy{})
	a.returns(tr, out)
	a.handler()
	code, stack := NewAsm(a.grow(1<<16)), a.grow(1<<16)+1<<16-4096
	start := code.Addr()
	for range 2 {
		for range calls { // each iteration another place
			code.MovRI(RAX, arenaProbed)
			code.CallR(RAX)
			code.OpRI(OpAdd, 8, RBX, 1)
		}
	}
	code.Ret()
	b, err := code.Finish()
	if err != nil {
		t.Fatal(err)
	}
	copy(a.at(start), b)
	a.runs = append(a.runs, detourRun{Regs: [16]uint64{RSP: stack}, Flags: 0x202, PC: start})
	a.run()
	if got := a.runs[0].Out[RBX]; got != 2*calls {
		t.Fatalf("%d calls came back of %d", got, 2*calls)
	}
	used, missed, n := a.inUse(tr), int(a.counted(1, ring.CtrMissed)), len(a.records())+int(a.counted(1, ring.CtrLost))
	if n+missed != 2*calls || used > TrampolineCalls || used < TrampolineCalls*3/4 || a.stray(tr) != 0 {
		t.Errorf("%d calls: %d returns, %d missed; %d of %d stubs are in use", 2*calls, n, missed, used, TrampolineCalls)
	}
	seen := map[uint64]bool{}
	for i, at := range a.words(tr) {
		v := a.get64(at)
		if i < fewCalls && v != start+uint64(i+1)*(uint64(len(b))-1)/(2*calls)-4 {
			t.Errorf("stub %d stands for 0x%x", i, v)
		}
		if v != 0 && seen[v] {
			t.Errorf("two stubs stand for 0x%x", v)
		}
		seen[v] = true
	}
}

func TestStubs(t *testing.T) {
	const lo = 0x500000000000
	good := TrampolineAt(lo, TrampolinePiece, 0, 7)
	for i, spoil := range []func(t *arch.Trampoline){
		func(t *arch.Trampoline) { t.Stubs += 8; t.Table += 8 },
		func(t *arch.Trampoline) { t.Table += 8 },
		func(t *arch.Trampoline) { t.More++ },
	} {
		bad := *good
		spoil(&bad)
		if _, _, err := NewStubs(&bad); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%d: %v", i, err)
		}
	}
	const size = 2 * TrampolinePiece
	for v, want := range map[uint64]bool{
		0: false, 0x10: false, 0x18: true, 0x38: true, 0x39: false, 0x40: false, 0x58: true, trampolineHeads: true,
		TrampolineDist - 8: true, TrampolineDist: false, TrampolineDist + 0x18: false, TrampolinePiece: false,
		TrampolinePiece + 0x18: true, size - 8: false, size + 0x18: false, ^uint64(7): false,
	} {
		if IsStub(lo+v, lo, size) != want {
			t.Errorf("0x%x is a stub: %v", v, !want)
		}
	}
	for v, want := range map[uint64]bool{0x10: false, 0x18: true, 0xff8: true, 0x19: false, 0x1000: false, 0x1018: true, FlatStubs + 0x18: false} {
		if IsFlatStub(lo+v, lo) != want {
			t.Errorf("0x%x is a stub of before: %v", v, !want)
		}
	}
	piece, err := PieceStubs()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 7, TrampolinesPerPiece - 1} {
		at := TrampolineAt(lo, size, 0, TrampolinesPerPiece+n)
		first, more, err := NewStubs(at)
		if err != nil {
			t.Fatal(err)
		}
		stubs := at.Stubs - lo - TrampolinePiece
		if !bytes.Equal(first, piece[stubs:][:len(first)]) || !bytes.Equal(more, piece[at.More-lo-TrampolinePiece:][:len(more)]) {
			t.Errorf("function %d: its code is not the same in every piece", n)
		}
		if head := PieceHeads(lo + TrampolinePiece)[stubs:]; binary.LittleEndian.Uint64(head) != at.Stubs {
			t.Errorf("function %d leads to 0x%x, not to its bare code", n, binary.LittleEndian.Uint64(head))
		}
	}
	for _, w := range []*arch.CodegenEnv{{Go: &arch.GoRuntime{}}, {Kernel: &arch.Kernel{}}} {
		if _, err := NewReturnDetour(0x10000, good, nil, w); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%+v: %v", w, err)
		}
	}
}
