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

// What a test's gate is given for a handler: words, and behind them what it tells of each
// call, the last callLogs of them.
const (
	callCount    = 0
	callAction   = 8
	callMask     = 16 // every register but RSP is changed by xor with it
	callSetFlags = 24 // not 0: the flags become callFlags
	callFlags    = 32
	callLog      = 64

	callLogs    = 128
	callLogSize = 256
	callBytes   = callLog + callLogs*callLogSize
)

// Words of what is told, after the registers by number.
const (
	logFlags    = 128
	logInstance = 136
	logKey      = 144 // the instance's first word
	logFrame    = 152
	logTSC      = 160
)

// gate installs a gate that tells the registers, changes them as asked, and leaves nothing
// unchanged that a gate may clobber.
func (a *arena) gate() {
	a.t.Helper()
	g := NewAsm(arenaGate)
	noInstance, keep := g.Label(), g.Label()
	g.MovRI(R11, 1)
	g.Lock().Xadd(8, At(R12, callCount), R11)
	g.OpRI(OpAnd, 4, R11, callLogs-1)
	g.ImulRRI(8, R11, R11, callLogSize)
	g.Lea(RCX, AtIndex(R12, R11, 1, callLog))
	slots := map[Reg]int32{RAX: GateRAX, RCX: GateRCX, RDX: GateRDX, R11: GateR11, R12: GateR12, R13: GateR13}
	for r := RAX; r <= R15; r++ {
		if slot, ok := slots[r]; ok {
			g.MovRM(8, R11, At(RSP, slot))
			g.MovMR(8, At(RCX, 8*int32(r)), R11)
		} else {
			g.MovMR(8, At(RCX, 8*int32(r)), r)
		}
	}
	g.Lea(R11, AtIndex(RSP, RDX, 1, 0))
	g.MovMR(8, At(RCX, 8*int32(RSP)), R11)
	g.MovZXM(2, R11, At(RSP, GateFlags))
	g.MovMR(8, At(RCX, logFlags), R11)
	g.MovMR(8, At(RCX, logFrame), RSP)
	g.MovMR(8, At(RCX, logInstance), RAX)
	g.MovMI(8, At(RCX, logKey), 0)
	g.OpRI(OpCmp, 8, RAX, faultTraps) // at a fault it is the trap number
	g.Jcc(CondB, noInstance)
	g.MovRM(8, R11, At(RAX, slotKey))
	g.MovMR(8, At(RCX, logKey), R11)
	g.Bind(noInstance)
	g.tell(RCX)
	g.MovRM(8, R11, At(R12, callMask))
	for r := RAX; r <= R15; r++ {
		if slot, ok := slots[r]; ok {
			g.OpMR(OpXor, 8, At(RSP, slot), R11)
		} else if r != RSP {
			g.OpRR(OpXor, 8, r, R11)
		}
	}
	g.OpMI(OpCmp, 8, At(R12, callSetFlags), 0)
	g.Jcc(CondE, keep)
	g.MovRM(8, R11, At(R12, callFlags))
	g.MovMR(8, At(RSP, GateFlags), R11)
	g.Bind(keep)
	for off := int32(8); off <= GateStack; off += 8 {
		g.MovMI(8, At(RSP, -off), -1)
	}
	g.MovMR(8, At(RSP, -8), R13)
	g.MovRM(8, RAX, At(R12, callAction))
	g.MovRI(RCX, 0xdead0000ffff)
	g.OpRR(OpOr, 8, RAX, RCX) // the upper bits are anything
	g.MovZXM(4, RDX, At(R12, callAction))
	g.ShiftRI(Shr, 8, RAX, 32)
	g.ShiftRI(Shl, 8, RAX, 32)
	g.OpRR(OpOr, 8, RAX, RDX)
	for _, r := range []Reg{RDX, R11, R12, R13} {
		g.MovRI(r, 0xbad0bad0bad0bad0)
	}
	g.JmpM(At(RSP, -8))
	code, err := g.Finish()
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(arenaGate), code)
	a.w.Gate = arenaGate
}

// tell stores the time into a log.
func (a *Asm) tell(log Reg) {
	a.Push(RAX)
	a.Push(RDX)
	a.Rdtsc()
	a.ShiftRI(Shl, 8, RDX, 32)
	a.OpRR(OpOr, 8, RAX, RDX)
	a.MovMR(8, At(log, logTSC), RAX)
	a.Pop(RDX)
	a.Pop(RAX)
}

// callDesc is the place of handler i's words.
func callDesc(i int) uint64 { return arenaCalls + uint64(i)*callBytes }

func called(i int) *arch.Call { return &arch.Call{Desc: callDesc(i)} }

// callsOf tells how often handler i was called.
func (a *arena) callsOf(i int) uint64 { return a.get64(callDesc(i) + callCount) }

// callTold is what was told of one call.
type callTold struct {
	regs            [16]uint64
	flags           uint64 // the arithmetic flags
	instance, key   uint64
	frame, tsc, seq uint64
}

// told gives what was told of call n of handler i.
func (a *arena) told(i int, n uint64) callTold {
	at := callDesc(i) + callLog + n%callLogs*callLogSize
	c := callTold{
		instance: a.get64(at + logInstance), key: a.get64(at + logKey), frame: a.get64(at + logFrame),
		tsc: a.get64(at + logTSC), seq: n,
	}
	for r := range c.regs {
		c.regs[r] = a.get64(at + 8*uint64(r))
	}
	w := a.get64(at + logFlags)
	c.flags = w>>8&0xd5 | w&1<<11
	return c
}

// gateVariants are detourVariants and a gate that is far away.
func gateVariants() []struct {
	name string
	set  func(a *arena)
} {
	return append(detourVariants[:4:4], struct {
		name string
		set  func(a *arena)
	}{"far_gate", func(a *arena) { a.w.Gate = a.child.farGate }})
}

// callingWork has handlers before and after every instruction of carryFunction (number i
// and i+6 for the ith), among records, counters and two return probes, the second with
// handlers 12 and 13.
func callingWork(pool *arch.Pool) map[uint64][]arch.ProbeOp {
	work := countingWork(pool)
	for i, off := range carryPoints {
		pre := arch.ProbeOp{Event: 7, Role: arch.RoleCall, Call: called(i)}
		post := arch.ProbeOp{Event: 7, Role: arch.RoleCall, Call: called(i + 6), After: true}
		work[off] = append([]arch.ProbeOp{post, pre}, work[off]...)
	}
	entry := arch.ProbeOp{Event: 7, Role: arch.RoleEntry, Call: called(12), Pool: pool}
	exit := arch.ProbeOp{Event: 7, Role: arch.RoleExit, Call: called(13), Pool: pool, Instance: 7}
	work[0] = append([]arch.ProbeOp{entry}, work[0]...)
	work[carryExit] = append(work[carryExit], exit)
	return work
}

// carryState gives the registers before instruction i of carryFunction, or at its end.
func carryState(regs [16]uint64, i int) [16]uint64 {
	rdi := regs[RDI]
	sum := rdi + regs[RSI]
	if i > 1 {
		regs[RDI] = sum
	}
	if i > 2 {
		regs[RAX] = sum + 1
	}
	if i > 3 {
		regs[RCX] = rdi
	}
	if i > 4 {
		regs[RAX] += rdi
		if sum < rdi {
			regs[RAX]++
		}
	}
	return regs
}

// carryFlags gives the carry, zero and sign flags before instruction i of carryFunction.
func carryFlags(regs [16]uint64, flags uint64, i int) uint64 {
	const cf, zf, sf = 1, 0x40, 0x80
	sum := regs[RDI] + regs[RSI]
	last, carry := sum, sum < regs[RDI]
	switch {
	case i < 2:
		return flags & (cf | zf | sf)
	case i > 4:
		last = carryState(regs, i)[RAX]
		in := uint64(0)
		if carry {
			in = 1
		}
		carry = sum+1+regs[RDI] < sum+1 || sum+1+regs[RDI]+in < in
	}
	flags = 0
	if carry {
		flags |= cf
	}
	if last == 0 {
		flags |= zf
	}
	return flags | last>>63*sf
}

// TestCallSeesRegisters has handlers before and after every instruction of a function: each
// sees the thread's own registers and flags, and nothing that the function uses changes.
func TestCallSeesRegisters(t *testing.T) {
	child := buildDetourChild(t)
	for vi, v := range gateVariants() {
		for _, tc := range tactics {
			t.Run(v.name+"_"+tc.name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(31, uint64(vi)))
				a := newArena(t, child)
				a.gate()
				v.set(a)
				work := callingWork(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)})
				a.probe(hexBytes(t, carryFunction), work, tc.policy)
				a.handler()
				for range 100 {
					a.add(a.state(r))
				}
				a.run()
				a.checkCounts(work)
				for i := range 14 {
					if n := a.callsOf(i); n != a.ctl.Did {
						t.Fatalf("handler %d: %d calls in %d runs", i, n, a.ctl.Did)
					}
				}
				for n := range uint64(100) {
					a.checkCalls(&a.runs[2*n+1], n)
				}
			})
		}
	}
}

// checkCalls compares what the handlers of callingWork saw in a run.
func (a *arena) checkCalls(run *detourRun, n uint64) {
	a.t.Helper()
	for i := range 14 {
		// Before instruction 5, a return, all has been done that is to be seen: also
		// by the handler behind it.
		at := []int{0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 5, 0, 5}[i]
		told := a.told(i, n)
		if want := carryState(run.Regs, at); told.regs != want {
			a.t.Fatalf("handler %d saw %#x, want %#x", i, told.regs, want)
		}
		if have, want := told.flags&0xc1, carryFlags(run.Regs, run.Flags, at); have != want {
			a.t.Fatalf("handler %d saw flags %#x, want %#x", i, have, want)
		}
		if (told.instance != 0) != (i >= 12) || (told.key != 0) != (i >= 12) {
			a.t.Fatalf("handler %d got instance %#x with key %#x", i, told.instance, told.key)
		}
		if told.regs[RSP]-told.frame < redZone {
			a.t.Fatalf("handler %d: frame at %#x, the stack at %#x", i, told.frame, told.regs[RSP])
		}
	}
	if in, out := a.told(12, n).instance, a.told(13, n).instance; in != out {
		a.t.Fatalf("instance %#x at the entry, %#x at the return", in, out)
	}
	order := []int{12, 0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 13, 11}
	for i := 1; i < len(order); i++ {
		if a.told(order[i], n).tsc <= a.told(order[i-1], n).tsc {
			a.t.Fatalf("handler %d ran before handler %d", order[i], order[i-1])
		}
	}
}

// TestCallUnderSignals has handlers called by the handlers of signals in the middle of a
// call, at each instruction of the detours once.
func TestCallUnderSignals(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range gateVariants() {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(18, 9))
			a := newArena(t, child)
			a.gate()
			v.set(a)
			work := callingWork(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)})
			a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
			a.handler()
			a.add(a.state(r))
			a.nested(a.state(r))
			places := a.instructions()
			a.put64(arenaActions, places...)
			a.ctl.Mode, a.ctl.Places, a.ctl.NPlaces = modeSteps, arenaActions, uint64(len(places))
			a.run()
			a.checkCounts(work)
			for i := range 14 {
				if n := a.callsOf(i); n != a.ctl.Did+a.ctl.DidNested {
					t.Errorf("handler %d: %d calls in %d runs", i, n, a.ctl.Did+a.ctl.DidNested)
				}
			}
			if a.ctl.DidNested < uint64(len(places))/3 {
				t.Errorf("only %d of %d places were reached", a.ctl.DidNested, len(places))
			}
		})
	}
}

// TestCallChangesRegisters has a handler change all registers and the flags, before an
// instruction and after one.
func TestCallChangesRegisters(t *testing.T) {
	child := buildDetourChild(t)
	const mask = 0x5a5a5a5a12345678
	for _, after := range []bool{false, true} {
		for _, tc := range tactics {
			t.Run(fmt.Sprint(after, "_", tc.name), func(t *testing.T) {
				r := rand.New(rand.NewPCG(3, 3))
				a := newArena(t, child)
				a.gate()
				// nopl 0(%rax,%rax,1); ret
				flags := &fetch.Program{Fixed: 16, Args: []fetch.Arg{
					{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.RegFlags}, Size: 8},
					{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(R12)}, Size: 8, Off: 8},
				}}
				ws := []arch.ProbeOp{{Event: 1, Prog: flags}, {Event: 7, Role: arch.RoleCall, Call: called(0), After: after}, {Event: 2, Prog: flags}}
				a.probe(hexBytes(t, "0f1f440000 c3"), map[uint64][]arch.ProbeOp{0: ws}, tc.policy)
				a.handler()
				const set = 0x8d5 &^ 0x40
				a.put64(callDesc(0)+callMask, mask)
				a.put64(callDesc(0)+callSetFlags, 1, 0xffff<<32|(set&0xff)<<8|1)
				for range 20 {
					regs, flags := a.state(r)
					a.add(regs, flags)
					plain := &a.runs[len(a.runs)-2]
					for i := range plain.Regs {
						if i != int(RSP) {
							plain.Regs[i] ^= mask
						}
					}
					plain.Flags = 0x202 | set
				}
				a.run()
				if n := a.callsOf(0); n != 20 {
					t.Fatalf("%d calls", n)
				}
				a.checkChanges(after, mask, set)
			})
		}
	}
}

// checkChanges holds records before and after a handler to what it changed.
func (a *arena) checkChanges(after bool, mask, set uint64) {
	a.t.Helper()
	seen := [3]int{}
	for _, rec := range a.records() {
		run := &a.runs[2*seen[rec.event]+1]
		seen[rec.event]++
		flags, r12 := run.Flags&0x8d5, run.Regs[R12]
		if rec.event == 2 && !after {
			flags, r12 = set, r12^mask
		}
		if have := u64At(rec.rec, 16) & 0x8d5; have != flags || u64At(rec.rec, 24) != r12 {
			a.t.Errorf("event %d: flags %#x, want %#x; r12 %#x, want %#x", rec.event, have, flags, u64At(rec.rec, 24), r12)
		}
	}
	if seen[1] != 20 || seen[2] != 20 {
		a.t.Errorf("%v records", seen)
	}
}

// TestCallAtBranches has handlers after instructions that go elsewhere: they run before
// these, and so do those before them.
func TestCallAtBranches(t *testing.T) {
	child := buildDetourChild(t)
	for _, tc := range tactics {
		t.Run(tc.name, func(t *testing.T) {
			a := newArena(t, child)
			a.gate()
			work := map[uint64][]arch.ProbeOp{}
			for i, off := range []uint64{0, 4, 6, 11} {
				work[off] = []arch.ProbeOp{
					{Event: 7, Role: arch.RoleCall, Call: called(i + 4), After: true},
					{Event: 7, Role: arch.RoleCall, Call: called(i)},
				}
			}
			a.probe(hexBytes(t, recursive), work, tc.policy)
			a.handler()
			const depth = 20
			a.add([16]uint64{RSP: arenaStack, RDI: depth}, 0x202)
			a.run()
			for i, want := range []uint64{depth + 1, depth + 1, depth, depth + 1} {
				if pre, post := a.callsOf(i), a.callsOf(i+4); pre != want || post != want {
					t.Errorf("instruction %d: %d calls before, %d after, want %d", i, pre, post, want)
				}
				for n := range want {
					pre, post := a.told(i, n), a.told(i+4, n)
					if i == 0 {
						pre.regs[RDI]--
					}
					if pre.regs != post.regs || pre.tsc >= post.tsc {
						t.Errorf("instruction %d, run %d: before %#x, after %#x", i, n, pre, post)
					}
				}
			}
		})
	}
}

// TestCallAfterFault has a handler after an instruction that faults and is repaired: it
// runs once, when the instruction has been executed.
func TestCallAfterFault(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	a.gate()
	ws := []arch.ProbeOp{{Event: 7, Role: arch.RoleCall, Call: called(0)}, {Event: 7, Role: arch.RoleCall, Call: called(1), After: true}}
	a.probe(hexBytes(t, faulting), map[uint64][]arch.ProbeOp{faultingAt: ws}, arch.Policy{Force: arch.TacticJump})
	a.handler()
	a.ctl.Hole, a.ctl.Actions = arenaHole, arenaActions
	a.ctl.App, a.ctl.Repair = appHandled, arenaData+8
	a.put64(arenaData+8, 0x1234567)
	for i := range uint64(3) {
		a.add([16]uint64{RSP: arenaStack, RDI: arenaHole + 0x123, RSI: 77 + i, RAX: i}, 0x202)
	}
	a.run()
	if a.ctl.Handled != 6 || a.ctl.FaultPC != arenaProbed+faultingAt || a.callsOf(0) != 3 || a.callsOf(1) != 3 {
		t.Errorf("%d faults, at %#x, %d calls before, %d after", a.ctl.Handled, a.ctl.FaultPC, a.callsOf(0), a.callsOf(1))
	}
	for n := range uint64(3) {
		if pre, post := a.told(0, n), a.told(1, n); pre.regs[RAX] != n || post.regs[RAX] != 0x1234567 {
			t.Errorf("run %d: rax %#x before, %#x after", n, pre.regs[RAX], post.regs[RAX])
		}
	}
}

// TestCallPool pairs entries and returns of a recursive function by their instances, with
// handlers at either, at both, and ones that drop the instance.
func TestCallPool(t *testing.T) {
	child := buildDetourChild(t)
	const depth = 30
	for _, c := range []struct {
		name        string
		max         uint32
		entry, exit bool
		action      arch.Action
		in, out     uint64 // calls of the handlers
		missed      uint64
	}{
		{"both", 0, true, true, arch.ActionGo, depth + 1, depth + 1, 0},
		{"entry", 0, true, false, arch.ActionGo, depth + 1, 0, 0},
		{"exit", 0, false, true, arch.ActionGo, 0, depth + 1, 0},
		{"drop", 0, true, true, arch.ActionDrop, depth + 1, 0, 0},
		{"maxactive", 5, true, true, arch.ActionGo, 5, 5, depth + 1 - 5},
		{"maxactive_drop", 1, true, true, arch.ActionDrop, depth + 1, 0, 0},
		{"maxactive_enough", depth + 1, true, true, arch.ActionGo, depth + 1, depth + 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, child)
			a.gate()
			pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(0), Max: c.max, Active: arenaActive}
			entry := arch.ProbeOp{Event: 1, Role: arch.RoleEntry, Pool: pool}
			exit := arch.ProbeOp{Event: 1, Role: arch.RoleExit, Pool: pool, Instance: 1}
			if c.entry {
				entry.Call = called(0)
			}
			if c.exit {
				exit.Call = called(1)
			} else {
				exit.Count = true
			}
			a.probe(hexBytes(t, recursive), map[uint64][]arch.ProbeOp{0: {entry}, recursiveExit: {exit}}, arch.Policy{})
			a.handler()
			a.put64(callDesc(0)+callAction, uint64(c.action))
			a.add([16]uint64{RSP: arenaStack, RDI: depth}, 0x202)
			a.run()
			in, out, missed := a.callsOf(0), a.callsOf(1), a.counted(1, ring.CtrMissed)
			if in != c.in || out != c.out || missed != c.missed || a.counted(1, ring.CtrUnwound) != 0 {
				t.Errorf("%d calls at entries, %d at returns, %d missed, %d unwound; want %d, %d, %d, 0",
					in, out, missed, a.counted(1, ring.CtrUnwound), c.in, c.out, c.missed)
			}
			a.checkInstances(pool, in, out)
		})
	}
}

// checkInstances pairs what the handlers of TestCallPool saw: the last call that was
// entered returns first.
func (a *arena) checkInstances(pool *arch.Pool, in, out uint64) {
	a.t.Helper()
	for n := range min(in, out) {
		entry, exit := a.told(0, in-1-n), a.told(1, n)
		if entry.instance != exit.instance || entry.key != exit.key || entry.regs[RSP] != exit.regs[RSP] ||
			entry.key != entry.regs[RSP]^EventSalt(1) {
			a.t.Errorf("return %d: %#x; its entry %#x", n, exit, entry)
		}
	}
	if n := a.get64(arenaActive); n != 0 {
		a.t.Errorf("%d instances count as active", n)
	}
	for i := range uint64(1<<pool.Slots + bucketLen) {
		if key := a.get64(pool.Base + i<<pool.Stride); key != 0 {
			a.t.Fatalf("slot %d is still taken: %#x", i, key)
		}
	}
}

// TestCallGo calls handlers in functions of a Go program: one that does not check its stack,
// with room and without. The handler sees all arguments; only R12 and R13 may change.
func TestCallGo(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range []struct {
		name   string
		g      uint64
		room   uint64
		missed bool
	}{
		{"room", arenaG, 4096, false},
		{"just_enough", arenaG, 7*8 + maxPushed, false},
		{"little", arenaG, 7*8 + maxPushed - 8, true},
		{"no_goroutine", 0, 4096, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, child)
			a.gate()
			a.goroutine(c.g, c.room)
			// mov %rdi,%rax; add $7,%rax; ret: the arguments but one are not looked at
			a.probe(hexBytes(t, "4889f8 4883c007 c3"), map[uint64][]arch.ProbeOp{
				0: {{Event: 1, Role: arch.RoleCall, Call: called(0)}},
			}, arch.Policy{Force: arch.TacticJump})
			a.handler()
			regs := [16]uint64{RSP: arenaStack}
			for r := range regs {
				if r != int(RSP) {
					regs[r] = 0x1111 * uint64(r+1)
				}
			}
			a.add(regs, 0x202)
			a.run()
			a.checkBelow(arenaStack - c.room)
			calls, missed := a.callsOf(0), a.counted(1, ring.CtrMissed)
			if calls+missed != 1 || (missed == 1) != c.missed {
				t.Fatalf("%d calls, %d missed", calls, missed)
			}
			if calls == 0 {
				return
			}
			told := a.told(0, 0)
			told.regs[R12], told.regs[R13] = regs[R12], regs[R13]
			if told.regs != regs || told.regs[RSP]-told.frame != 7*8 {
				t.Errorf("frame of %d bytes; the handler saw %#x, want %#x", told.regs[RSP]-told.frame, told.regs, regs)
			}
		})
	}
}

// TestCallGoInstances pairs entries and returns on a goroutine's stack.
func TestCallGoInstances(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	a.gate()
	a.goroutine(arenaG, 8192)
	a.ctl.Free |= uint64(Flags) // they carry nothing out of a Go function
	pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(0), Max: 64, Active: arenaActive}
	a.probe(hexBytes(t, recursive), map[uint64][]arch.ProbeOp{
		0:             {{Event: 1, Role: arch.RoleEntry, Pool: pool, Call: called(0)}},
		recursiveExit: {{Event: 1, Role: arch.RoleExit, Pool: pool, Instance: 1, Call: called(1)}},
	}, arch.Policy{})
	a.handler()
	const depth = 20
	a.add([16]uint64{RSP: arenaStack, RDI: depth, R12: 5, R13: 6, R14: 7}, 0x202)
	a.run()
	if in, out := a.callsOf(0), a.callsOf(1); in != depth+1 || out != in {
		t.Fatalf("%d entries, %d returns", in, out)
	}
	for n := range uint64(depth + 1) {
		entry, exit := a.told(0, depth-n), a.told(1, n)
		distance := arenaStack + 0x1000 - exit.regs[RSP]
		if key := uint64(arenaGoID)<<goKeyShift | distance>>3; entry.instance != exit.instance || exit.key != key^EventSalt(1) {
			t.Errorf("return %d: %#x; its entry %#x", n, exit, entry)
		}
	}
	for i := range uint64(1<<pool.Slots + bucketLen) {
		if key := a.get64(pool.Base + i<<pool.Stride); key != 0 {
			t.Fatalf("slot %d is still taken: %#x", i, key)
		}
	}
	if n := a.get64(arenaActive); n != 0 {
		t.Errorf("%d instances count as active", n)
	}
}

// arenaGoID is the id of the goroutine at arenaG.
const arenaGoID = 99

// goroutine makes the program one of Go, whose thread runs g, with room bytes of stack
// below arenaStack.
func (a *arena) goroutine(g, room uint64) {
	a.w.HasRseq, a.w.TID = false, arch.TIDGo
	a.w.Go = &arch.GoRuntime{TLS: a.child.gOff, StackLo: 0, StackHi: 8, M: 0x30, GoID: 0x98, ProcID: 0x48}
	low := arenaStack - room
	a.put64(arenaG, low, arenaStack+0x1000)
	a.put64(arenaG+0x30, arenaM)
	a.put64(arenaG+0x98, arenaGoID)
	a.ctl.G, a.ctl.Free = g, uint64(Set(R12, R13))
	for p := low - 256; p < low; p += 8 {
		a.put64(p, 0x5afe5afe5afe5afe)
	}
}

// checkBelow looks at what stands below the low end of a goroutine's stack.
func (a *arena) checkBelow(low uint64) {
	a.t.Helper()
	for p := low - 256; p < low; p += 8 {
		if a.get64(p) != 0x5afe5afe5afe5afe {
			a.t.Fatalf("%d bytes below the stack's end are written", low-p)
		}
	}
}

// TestCallErrors asks for calls that can not be made.
func TestCallErrors(t *testing.T) {
	fn, err := X86.Analyse(&arch.Func{Name: "f", Addr: 0x1000, Code: hexBytes(t, "b801000000 c3")})
	if err != nil {
		t.Fatal(err)
	}
	regions, _ := fn.Plan([]uint64{0x1000}, arch.Policy{})
	for _, c := range []struct {
		name string
		gate uint64
		work arch.ProbeOp
		want error
	}{
		{"no_gate", 0, arch.ProbeOp{Role: arch.RoleCall, Call: &arch.Call{Desc: 1}}, unix.EOPNOTSUPP},
		{"no_gate_after", 0, arch.ProbeOp{Role: arch.RoleCall, Call: &arch.Call{Desc: 1}, After: true}, unix.EOPNOTSUPP},
		{"no_gate_exit", 0, arch.ProbeOp{Role: arch.RoleExit, Call: &arch.Call{Desc: 1}, Pool: &arch.Pool{}}, unix.EOPNOTSUPP},
		{"no_handler", 0x4000, arch.ProbeOp{Role: arch.RoleCall}, unix.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			work := map[uint64][]arch.ProbeOp{0x1000: {c.work}}
			w := &arch.CodegenEnv{Gate: c.gate}
			if _, err := fn.Detour(0x2000, regions[0], work, w); !errors.Is(err, c.want) {
				t.Errorf("detour: %v", err)
			}
			if _, err := fn.DetourSize(regions[0], work, w); !errors.Is(err, c.want) {
				t.Errorf("size: %v", err)
			}
		})
	}
}

// TestCallSize holds the promise of a detour's size where only the place that is given to
// it in the end is out of the gate's reach.
func TestCallSize(t *testing.T) {
	const text, gate = 0x80000000, 0x10000
	fn, err := X86.Analyse(&arch.Func{Name: "f", Addr: text, Code: hexBytes(t, "b801000000 c3")})
	if err != nil {
		t.Fatal(err)
	}
	regions, _ := fn.Plan([]uint64{text}, arch.Policy{})
	work := map[uint64][]arch.ProbeOp{}
	for i := range 200 {
		work[text] = append(work[text], arch.ProbeOp{Role: arch.RoleCall, Call: called(i)})
	}
	w := &arch.CodegenEnv{Gate: gate}
	size, err := fn.DetourSize(regions[0], work, w)
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int
	for _, at := range []uint64{text + 1<<29, text - 1<<20} { // the second reaches it
		d, err := fn.Detour(at, regions[0], work, w)
		if err != nil {
			t.Fatal(err)
		}
		if sizes = append(sizes, len(d.Code)); len(d.Code) > size {
			t.Errorf("detour of %d bytes at %#x, %d were promised", len(d.Code), at, size)
		}
	}
	if sizes[0] <= sizes[1] {
		t.Errorf("detours of %d bytes: the gate is not in and out of reach", sizes)
	}
	for i, o := range work[text] { // each has a gate of its own, two of them the same
		c := *o.Call
		c.Gate = gate + uint64(i/2)
		work[text][i].Call = &c
	}
	if size, err = fn.DetourSize(regions[0], work, &arch.CodegenEnv{}); err != nil {
		t.Fatal(err)
	}
	d, err := fn.Detour(text-1<<20, regions[0], work, &arch.CodegenEnv{})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Code) > size {
		t.Errorf("detour of %d bytes with gates of its calls, %d were promised", len(d.Code), size)
	}
	for i := range 100 {
		if !bytes.Contains(d.Code, binary.LittleEndian.AppendUint64(nil, gate+uint64(i))) {
			t.Errorf("the detour does not name gate %d", i)
		}
	}
}
