package amd64

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// countingWork puts one probe on every instruction of carryFunction: records, counters
// and a return probe.
func countingWork(pool *arch.Pool) map[uint64][]arch.ProbeOp {
	work := map[uint64][]arch.ProbeOp{}
	prog := &fetch.Program{Fixed: 24, Args: []fetch.Arg{
		{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Size: 8},
		{Store: fetch.StoreValue, Base: fetch.Base{Kind: fetch.BaseStack, N: 1}, Size: 8, Off: 8},
		{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Derefs: []int64{0}, Size: 8, Off: 16},
	}}
	for i, off := range carryPoints {
		work[off] = []arch.ProbeOp{{Event: i, Prog: prog, Count: i%2 == 1}}
	}
	ret := &fetch.Program{Fixed: 8, Return: true, Args: []fetch.Arg{{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RSI)}, Size: 8, AtEntry: true}}}
	work[0] = append(work[0], arch.ProbeOp{Event: 6, Role: arch.RoleEntry, Prog: ret, Pool: pool})
	work[carryExit] = append(work[carryExit], arch.ProbeOp{Event: 6, Role: arch.RoleExit, Prog: ret, Pool: pool, Instance: 6})
	return work
}

// checkCounts holds every event to the number of runs: read, lost and counted.
func (a *arena) checkCounts(work map[uint64][]arch.ProbeOp) {
	a.t.Helper()
	runs := a.ctl.Did + a.ctl.DidNested
	read := map[uint32]uint64{}
	for _, rec := range a.records() {
		read[rec.event]++
	}
	for e := range 7 {
		n := read[uint32(e)] + a.counted(e, ring.CtrHits) + a.counted(e, ring.CtrLost)
		if n != runs || a.counted(e, ring.CtrMissed) != 0 || a.counted(e, ring.CtrUnwound) != 0 {
			a.t.Errorf("event %d: %d of %d runs: read %d, lost %d, missed %d, unwound %d", e, n, runs,
				read[uint32(e)], a.counted(e, ring.CtrLost), a.counted(e, ring.CtrMissed), a.counted(e, ring.CtrUnwound))
		}
	}
	p := work[0][slices.IndexFunc(work[0], func(w arch.ProbeOp) bool { return w.Pool != nil })].Pool
	for i := range uint64(1<<p.Slots + bucketLen) {
		at := p.Base + i<<p.Stride
		if a.ctl.Low != 0 {
			at += arenaAddr - a.ctl.Low
		}
		if key := a.get64(at); key != 0 {
			a.t.Errorf("slot %d of the pool is still taken: %#x", i, key)
		}
	}
}

// tactics are the ways into a detour, with points that each can have at once.
var tactics = []struct {
	name   string
	policy arch.Policy
}{
	{"jump", arch.Policy{Force: arch.TacticJump}},
	{"boost", arch.Policy{Force: arch.TacticBoost}},
	{"step", arch.Policy{Force: arch.TacticStep}},
}

// TestDetourKeepsState probes every instruction of a function, each way in, and runs it
// from random states.
func TestDetourKeepsState(t *testing.T) {
	child := buildDetourChild(t)
	for vi, v := range detourVariants {
		for _, tc := range tactics {
			t.Run(v.name+"_"+tc.name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(3, uint64(vi)))
				a := newArena(t, child)
				v.set(a)
				work := countingWork(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)})
				a.probe(hexBytes(t, carryFunction), work, tc.policy)
				a.handler()
				for range 150 {
					a.add(a.state(r))
				}
				a.run()
				a.checkCounts(work)
				for _, rec := range a.records() {
					if rec.locked == a.lockless() {
						t.Fatalf("event %d: locked %v", rec.event, rec.locked)
					}
				}
			})
		}
	}
}

// TestDetourUnderSignals lets a timer's handler run the probed function while it runs:
// nothing may come out otherwise and every run must be told of.
func TestDetourUnderSignals(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, 6))
			a := newArena(t, child)
			v.set(a)
			work := countingWork(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)})
			a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
			a.handler()
			for range 50 {
				a.add(a.state(r))
			}
			a.nested(a.state(r))
			a.ctl.Mode, a.ctl.Rounds = modeStorm, 1000
			a.run()
			a.checkCounts(work)
		})
	}
}

// TestDetourInterruptedEverywhere interrupts the detours at each of their instructions
// once, by a signal whose handler runs the probed function.
func TestDetourInterruptedEverywhere(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(8, 9))
			a := newArena(t, child)
			v.set(a)
			work := countingWork(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)})
			a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
			a.handler()
			a.add(a.state(r))
			a.add(a.state(r))
			a.nested(a.state(r))
			places := a.instructions()
			a.put64(arenaActions, places...)
			a.ctl.Mode, a.ctl.Places, a.ctl.NPlaces = modeSteps, arenaActions, uint64(len(places))
			a.run()
			a.checkCounts(work)
			if a.ctl.DidNested < uint64(len(places))/3 {
				t.Errorf("only %d of %d places were reached", a.ctl.DidNested, len(places))
			}
			t.Logf("%d of %d instructions interrupted", a.ctl.DidNested, len(places))
		})
	}
}

// instructions lists the addresses of all instructions of the detours. What stands behind
// the code is data, which does no harm: nothing runs it. So is what stands behind a jump that loads its target from there.
func (a *arena) instructions() (out []uint64) {
	for _, d := range a.detour {
		for off := 0; off < len(d.Code); {
			in, err := Decode(d.Code[off:])
			if err != nil || in.Kind == KindUndef { // a signature or a descriptor follows
				break
			}
			out = append(out, d.Addr+uint64(off))
			far := bytes.HasPrefix(d.Code[off:], []byte{0xff, 0x25, 0, 0, 0, 0})
			if off += int(in.Len); far {
				off += 8
			}
		}
	}
	return out
}

// onOneCPU calls what starts a program, which stays on one CPU.
func onOneCPU(t *testing.T, start func()) {
	t.Helper()
	runtime.LockOSThread() // what a thread starts may run where it may
	defer runtime.UnlockOSThread()
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !may.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &may); err != nil {
			t.Error(err)
		}
	}()
	start()
}

// TestDetourRingFull writes more than a ring holds.
func TestDetourRingFull(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(4, 4))
			a := newArena(t, child)
			v.set(a)
			copy(a.at(arenaData), make([]byte, 8))
			for i := range 4090 {
				a.at(arenaData)[i] = 'x'
			}
			prog := &fetch.Program{Fixed: 8, Dynamic: true, Args: []fetch.Arg{
				{Store: fetch.StoreString, Base: fetch.Base{Kind: fetch.BaseImm, Imm: arenaData}, Derefs: []int64{0}, Size: 1},
			}}
			array := &fetch.Program{Fixed: 2048}
			for i := range 256 {
				array.Args = append(array.Args, fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(i % 16)}, Size: 8, Off: 8 * i})
			}
			a.probe(hexBytes(t, carryFunction), map[uint64][]arch.ProbeOp{
				0: {{Event: 1, Prog: prog}}, 12: {{Event: 2, Prog: array}},
			}, arch.Policy{Force: arch.TacticJump})
			a.handler()
			for range 180 {
				a.add(a.state(r))
			}
			onOneCPU(t, a.run) // the rings of all together hold almost as much as is written
			var read [3]uint64
			for _, rec := range a.records() {
				read[rec.event]++
			}
			for e := 1; e <= 2; e++ {
				if lost := a.counted(e, ring.CtrLost); lost == 0 || read[e] == 0 || read[e]+lost != a.ctl.Did {
					t.Errorf("event %d: read %d, lost %d of %d", e, read[e], lost, a.ctl.Did)
				}
			}
		})
	}
}

// recursive calls itself RDI times:
//
//	0 sub $1,%rdi   4 jb 11   6 call 0   11 ret
const (
	recursive     = "4883ef01 7205 e8f5ffffff c3"
	recursiveExit = 11
)

// TestDetourPool pairs the entries and returns of a recursive function.
func TestDetourPool(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range []struct {
		name   string
		slots  int
		max    uint32
		depth  uint64
		missed bool
	}{
		{"small", 6, 0, 10, false},
		{"maxactive_1", 6, 1, 0, false},
		{"maxactive_exceeded", 8, 5, 40, true},
		{"full", 6, 0, 500, true},
		{"deep", 18, 0, 65535, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, child)
			ret := &fetch.Program{Fixed: 8, Return: true, Args: []fetch.Arg{{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Size: 8, AtEntry: true}}}
			stack := uint64(arenaStack)
			pool := &arch.Pool{Base: arenaPool, Slots: c.slots, Stride: SlotStride(1), Max: c.max, Active: arenaActive}
			if c.slots == 18 { // both are larger than the usual places
				pool.Base = a.grow(PoolBytes(c.slots, pool.Stride))
				stack = a.grow(1<<20) + 1<<20 - 4096
			}
			a.probe(hexBytes(t, recursive), map[uint64][]arch.ProbeOp{
				0:             {{Event: 1, Role: arch.RoleEntry, Prog: ret, Pool: pool}},
				recursiveExit: {{Event: 1, Role: arch.RoleExit, Prog: ret, Pool: pool, Instance: 1}},
			}, arch.Policy{})
			a.handler()
			a.add([16]uint64{RSP: stack, RDI: c.depth}, 0x202)
			a.run()
			a.checkPool(pool, c.depth, c.missed)
		})
	}
}

// grow makes the arena larger by n bytes and gives the place.
func (a *arena) grow(n uint64) uint64 {
	at := arenaAddr + uint64(len(a.mem))
	a.mem = append(a.mem, make([]byte, (n+4095)&^4095)...)
	return at
}

func (a *arena) checkPool(pool *arch.Pool, depth uint64, missed bool) {
	a.t.Helper()
	read := uint64(0)
	next := uint64(0)
	for _, rec := range a.records() {
		v := u64At(rec.rec, 24)
		if v != uint64(depth) && v < next {
			a.t.Fatalf("return of call %d after that of %d", v, next)
		}
		next = v
		read++
	}
	lost, miss := a.counted(1, ring.CtrLost), a.counted(1, ring.CtrMissed)
	if read+lost+miss != depth+1 || missed != (miss > 0) || a.counted(1, ring.CtrUnwound) != 0 {
		a.t.Errorf("read %d, lost %d, missed %d of %d", read, lost, miss, depth+1)
	}
	if n := a.get64(arenaActive); n != 0 {
		a.t.Errorf("%d instances count as active", n)
	}
	if pool.Max != 0 && read+lost != min(uint64(pool.Max), depth+1) {
		a.t.Errorf("%d instances, want %d", read+lost, pool.Max)
	}
	for i := range uint64(1<<pool.Slots + bucketLen) {
		if slot := a.at(pool.Base + i<<pool.Stride); u64At(slot, 0) != 0 {
			a.t.Fatalf("slot %d is still taken", i)
		}
	}
}

func u64At(b []byte, off int) uint64 {
	return binary.LittleEndian.Uint64(b[off:])
}

// TestDetourUnwound leaves calls without a return: the next call at the same place of the
// stack takes the instance over.
func TestDetourUnwound(t *testing.T) {
	child := buildDetourChild(t)
	for _, limit := range []uint32{0, 1} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			a := newArena(t, child)
			ret := &fetch.Program{Return: true}
			pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(0), Max: limit, Active: arenaActive}
			// test %rdi,%rdi; js out; nop; nop; ret; out: pop %rcx; jmp *%rcx
			a.probe(hexBytes(t, "4885ff 7806 0f1f440000 c3 59 ffe1"), map[uint64][]arch.ProbeOp{
				0:  {{Event: 1, Role: arch.RoleEntry, Prog: ret, Pool: pool}},
				10: {{Event: 1, Role: arch.RoleExit, Prog: ret, Pool: pool, Instance: 1}},
			}, arch.Policy{})
			a.handler()
			for _, rdi := range []uint64{1 << 63, 1 << 63, 0, 1 << 63, 0, 0} {
				a.add([16]uint64{RSP: arenaStack, RDI: rdi}, 0x202)
			}
			a.run()
			unwound, missed, read := a.counted(1, ring.CtrUnwound), a.counted(1, ring.CtrMissed), len(a.records())
			if unwound != 3 || missed != 0 || read != 3 {
				t.Errorf("unwound %d, missed %d, read %d; want 3, 0, 3", unwound, missed, read)
			}
		})
	}
}
