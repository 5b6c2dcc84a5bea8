package amd64

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// A CPU's own data and a task in the arena, laid out as kernelOf says.
const (
	kernelGS      = arenaActions + 0x6000
	kernelTask    = arenaActions + 0x6100
	kernelStubs   = arenaActions + 0x6800 // jumps to the functions of the kernel
	kernelLow     = 0x20000000            // the arena, where displacements reach
	kernelUserEnd = arenaData + 0x4800
	kernelPID     = 0x12345
	kernelCPU     = 1
	kernelPreempt = 0x80010203
	kernelComm    = "a kernel's task\x00"
)

// asKernel makes the arena's code that of a kernel.
func (a *arena) asKernel() {
	a.w.Kernel = &arch.Kernel{CPU: 0x10, Current: 0x18, Preempt: 0x24, PID: 0x44, Comm: 0x58, UserEnd: kernelUserEnd}
	k := a.w.Kernel
	a.w.HasRseq, a.w.TID = false, arch.TIDSyscall
	a.ctl.GS, a.ctl.UserEnd, a.ctl.Context = kernelGS, kernelUserEnd, kernelGS+uint64(k.Preempt)
	binary.LittleEndian.PutUint32(a.at(kernelGS+uint64(k.CPU)), kernelCPU)
	binary.LittleEndian.PutUint32(a.at(kernelGS+uint64(k.Preempt)), kernelPreempt)
	a.put64(kernelGS+uint64(k.Current), kernelTask)
	binary.LittleEndian.PutUint32(a.at(kernelTask+uint64(k.PID)), kernelPID)
	copy(a.at(kernelTask+uint64(k.Comm)), kernelComm)
	for i, p := range []*uint64{&k.ReadKernel, &k.ReadUser, &k.StringKernel, &k.StringUser, &k.LengthUser} {
		*p = kernelStubs + 32*uint64(i)
		stub := NewAsm(*p)
		stub.Nop(2) // so that the address stands aligned, for alignment checks
		stub.JmpFar(a.child.kernel[i])
		copy(a.at(*p), stub.Bytes())
	}
}

// lockedOnly takes the rseq shards out of the ring.
func (a *arena) lockedOnly() {
	a.t.Helper()
	l, err := ring.NewLayout(ring.Config{CPUs: 2, Events: 8, DataSize: 1 << 18, LockedOnly: true})
	if err != nil {
		a.t.Fatal(err)
	}
	a.w.Layout = l
	a.mem = a.mem[:arenaRing-arenaAddr+l.Size()]
}

// low lets the ring, and a pool, be reached by displacements.
func (a *arena) low(p *arch.Pool) {
	a.ctl.Low = kernelLow
	a.w.Ring = kernelLow + arenaRing - arenaAddr
	p.Base -= arenaAddr - kernelLow
}

var kernelVariants = []struct {
	name     string
	near     bool
	locked   bool // the ring has locked shards only
	reserved bool // the function was compiled for ftrace
	later    bool // its endbr64 was sealed, and the preemption count has 64 bits
}{
	{"far", false, false, false, false},
	{"near", true, true, false, false},
	{"near_reserved", true, true, true, false},
	{"far_reserved", false, true, true, false},
	{"far_later", false, true, true, true},
}

// kernelFunction hands the carry on and uses no red zone:
//
//	0 push %rdi   1 add %rsi,%rdi   4 lea 1(%rdi),%rax   8 pop %rcx   9 adc %rcx,%rax   12 ret
const (
	kernelFunction = "57 4801f7 488d4701 59 4811c8 c3"
	kernelExit     = 12
	// Behind endbr64 and the bytes of ftrace, here a call as when it is on.
	kernelPrefix = "f30f1efa e811223344"
)

var kernelPoints = []uint64{0, 1, 4, 8, 9, 12}

// kernelArena makes the arena of a variant and gives its code and where the function is in it.
func kernelArena(t *testing.T, child *detourChild, vi int, pool *arch.Pool) (a *arena, code []byte, off uint64) {
	t.Helper()
	v := kernelVariants[vi]
	a = newArena(t, child)
	if v.locked {
		a.lockedOnly()
	}
	a.asKernel()
	if v.near {
		a.low(pool)
	}
	code = hexBytes(t, kernelFunction)
	if v.reserved {
		prefix := hexBytes(t, kernelPrefix)
		copy(prefix[4:], "\x0f\x1f\x44\x00\x00")
		code, off, a.reserved = append(prefix, code...), 9, 5
		if v.later {
			copy(prefix, "\x0f\x1f\x40\xd6")
			code, a.w.Kernel.WidePreempt = append(prefix, code[len(prefix):]...), true
			binary.LittleEndian.PutUint32(a.at(kernelGS+uint64(a.w.Kernel.Preempt)), kernelPreempt&^(1<<31))
			binary.LittleEndian.PutUint32(a.at(kernelGS+uint64(a.w.Kernel.Preempt)+4), kernelPreempt&(1<<31))
		}
		// what is free at the entry or at the return
		a.ctl.Free = uint64(Set(RCX, RSI, RDI, R8, R9, R10, R11) | 1<<16)
	}
	return a, code, off
}

// kernelState makes registers and flags for a kernel: alignment checks and direction too.
func (a *arena) kernelState(r *rand.Rand) (regs [16]uint64, flags uint64) {
	regs, flags = a.state(r)
	return regs, flags | r.Uint64()&(1<<18|1<<10)
}

// checkKernelHeader looks at what a kernel's record has at its start.
func (a *arena) checkKernelHeader(rec *arenaRecord, m *fetchModel) {
	a.t.Helper()
	const flags = 0x40ed5
	have := binary.LittleEndian.Uint32(rec.rec[KernelFlags:])
	if p := binary.LittleEndian.Uint32(rec.rec[KernelPreempt:]); p != kernelPreempt || uint64(have)&flags != m.flags&flags {
		a.t.Fatalf("preemption count %#x, want %#x; flags %#x, want %#x", p, kernelPreempt, have, m.flags)
	}
	if c := string(rec.rec[KernelComm:][:16]); c != kernelComm {
		a.t.Fatalf("task %q, want %q", c, kernelComm)
	}
}

// TestKernelDetourKeepsState probes every instruction of a function with records, counters
// and a return probe, and runs it from random states.
func TestKernelDetourKeepsState(t *testing.T) {
	child := buildDetourChild(t)
	for vi, v := range kernelVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(31, uint64(vi)))
			pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
			a, code, off := kernelArena(t, child, vi, pool)
			work := kernelWork(pool, off)
			a.probe(code, work, arch.Policy{Force: arch.TacticJump})
			a.ctl.Hole = arenaHole
			for range 150 {
				a.add(a.kernelState(r))
			}
			a.run()
			work[0] = work[off]
			a.checkCounts(work)
			if a.ctl.Called == 0 {
				t.Error("the kernel's functions were not called")
			}
		})
	}
}

// kernelWork is countingWork for kernelFunction at offset off.
func kernelWork(pool *arch.Pool, off uint64) map[uint64][]arch.ProbeOp {
	old, work := countingWork(pool), map[uint64][]arch.ProbeOp{}
	for i, at := range kernelPoints {
		work[off+at] = old[carryPoints[i]]
	}
	return work
}

// TestKernelDetourInterrupted interrupts the detours by a signal whose handler runs the
// probed function, at each of their instructions and at any time.
func TestKernelDetourInterrupted(t *testing.T) {
	child := buildDetourChild(t)
	for vi, v := range kernelVariants {
		for mode := uint64(modeStorm); mode <= modeSteps; mode++ {
			t.Run(fmt.Sprint(v.name, mode), func(t *testing.T) {
				r := rand.New(rand.NewPCG(32, uint64(vi)))
				pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
				a, code, off := kernelArena(t, child, vi, pool)
				work := kernelWork(pool, off)
				a.probe(code, work, arch.Policy{Force: arch.TacticJump})
				for range 2 {
					a.add(a.state(r))
				}
				a.nested(a.state(r))
				places := a.instructions()
				a.put64(arenaActions, places...)
				a.ctl.Mode, a.ctl.Rounds, a.ctl.Places, a.ctl.NPlaces = mode, 500, arenaActions, uint64(len(places))
				a.run()
				work[0] = work[off]
				a.checkCounts(work)
				if mode == modeSteps && a.ctl.DidNested < uint64(len(places))/3 {
					t.Errorf("only %d of %d places were reached", a.ctl.DidNested, len(places))
				}
			})
		}
	}
}

// TestKernelDetourValues is TestDetourValues in a kernel: numbers, arrays and strings of the
// user and of the kernel, with faults.
func TestKernelDetourValues(t *testing.T) {
	child := buildDetourChild(t)
	for vi, v := range kernelVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(33, uint64(vi)))
			for range 40 {
				testKernelValues(t, child, vi, r)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// kernelProgram is randomProgram without counted strings and with loads of the user's memory.
func kernelProgram(r *rand.Rand, atReturn bool) *fetch.Program {
	for {
		p := randomProgram(r, atReturn)
		refused := false
		for i := range p.Args {
			a := &p.Args[i]
			refused = refused || a.Store == fetch.StoreCounted
			a.User = uint32(r.UintN(1<<(len(a.Derefs)+1))) & uint32(r.UintN(16))
		}
		if !refused {
			return p
		}
	}
}

func testKernelValues(t *testing.T, child *detourChild, vi int, r *rand.Rand) {
	t.Helper()
	entry, exit := kernelProgram(r, false), kernelProgram(r, true)
	pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(len(exit.EntryBases()))}
	a, code, off := kernelArena(t, child, vi, pool)
	a.fillData(r)
	work := map[uint64][]arch.ProbeOp{
		off:              {{Event: 1, Prog: entry}, {Event: 2, Role: arch.RoleEntry, Prog: exit, Pool: pool}},
		off + kernelExit: {{Event: 2, Role: arch.RoleExit, Prog: exit, Pool: pool, Instance: 2}},
	}
	a.probe(code, work, arch.Policy{Force: arch.TacticJump})
	a.ctl.Hole = arenaHole
	for range 12 {
		a.add(a.kernelState(r))
	}
	a.run()
	recs := a.records()
	if want := len(a.runs); len(recs) != want || int(a.ctl.Did) != want/2 {
		t.Fatalf("%d records, want %d; lost %d %d, missed %d", len(recs), want,
			a.counted(1, ring.CtrLost), a.counted(2, ring.CtrLost), a.counted(2, ring.CtrMissed))
	}
	for i := range recs {
		plain := &a.runs[i/2*2]
		m := &fetchModel{a: a, regs: plain.Regs, entry: plain.Regs, flags: plain.Flags, ip: arenaProbed + off}
		prog, w := entry, &work[off][0]
		if i%2 == 1 {
			prog, w = exit, &work[off+kernelExit][0]
			m.regs, m.flags, m.ip = plain.Out, plain.OutFlags, arenaProbed+off+kernelExit
			m.regs[RSP] = plain.Regs[RSP]
		}
		a.checkRecord(&recs[i], w, prog, m)
	}
}

// TestKernelDetourStringLimits records strings of the kernel and of the user of all lengths
// around a word, a piece, the limit, and the end of what is mapped.
func TestKernelDetourStringLimits(t *testing.T) {
	child := buildDetourChild(t)
	for _, user := range []bool{false, true} {
		t.Run(fmt.Sprint("user=", user), func(t *testing.T) {
			a := newArena(t, child)
			a.asKernel()
			if user {
				a.ctl.UserEnd = arenaDataEnd
			} else {
				a.ctl.UserEnd = arenaData
			}
			a.w.Kernel.UserEnd = a.ctl.UserEnd
			copy(a.at(arenaData), make([]byte, arenaDataEnd-arenaData))
			for i := range a.at(arenaData)[:0x4000] {
				a.at(arenaData)[i] = "text"[i%4]
			}
			prog := &fetch.Program{Fixed: 8, Dynamic: true, Args: []fetch.Arg{
				{Store: fetch.StoreString, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Derefs: []int64{0}, Size: 1},
			}}
			work := map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: prog}}}
			a.probe(hexBytes(t, kernelFunction), work, arch.Policy{Force: arch.TacticJump})
			a.ctl.Hole = arenaHole
			end := uint64(arenaData + 0x4000)
			for _, back := range []uint64{
				0, 1, 2, 7, 8, 9, 20, 61, 62, 63, 64, 65, 125, 126, 127, 128, 4000, 4030, 4031, 4032, 4033, 4034,
				4093, 4094, 4095, 4096, 4097, 5000,
			} {
				a.limits(end-back, back)
			}
			for i := range a.at(arenaHole - 0x2000)[:0x2000] { // no end before the hole
				a.at(arenaHole - 0x2000)[i] = byte('A' + i%20)
			}
			for _, back := range []uint64{0, 1, 7, 8, 63, 64, 65, 4094, 4095, 4096, 4097} {
				a.limits(arenaHole-back, back)
			}
			a.run()
			for i, rec := range a.records() {
				run := &a.runs[2*i]
				m := &fetchModel{a: a, regs: run.Regs, entry: run.Regs, flags: run.Flags}
				a.checkRecord(&rec, &work[0][0], prog, m)
				if m.cap != fetch.MaxString {
					t.Fatalf("strings of %d bytes", m.cap)
				}
			}
			if n := a.counted(1, ring.CtrLost); n != 0 || len(a.records())*2 != len(a.runs) {
				t.Errorf("%d records of %d runs, %d lost", len(a.records()), len(a.runs)/2, n)
			}
		})
	}
}

// TestKernelDetourGuard hits a probe that reads memory by its own reading, as the guard sees
// it: nothing is read, and the hits are counted as missed. Other tasks, interrupts and CPUs have
// nothing to do with it.
func TestKernelDetourGuard(t *testing.T) {
	child := buildDetourChild(t)
	const runs = 10
	for vi, v := range kernelVariants {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprint(v.name, own), func(t *testing.T) {
				r := rand.New(rand.NewPCG(34, uint64(vi)))
				pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
				a, code, off := kernelArena(t, child, vi, pool)
				prog := &fetch.Program{Fixed: 8, Args: []fetch.Arg{{Store: fetch.StoreValue, Derefs: []int64{0}, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Size: 8}}}
				a.probe(code, map[uint64][]arch.ProbeOp{off: {{Event: 1, Prog: prog}, {Event: 2}}}, arch.Policy{Force: arch.TacticJump})
				key := uint64(kernelTask + kernelPreempt&int(guardContext(16)))
				wordOf := func(cpu int, key uint64) uint64 {
					return arenaRing + a.w.Layout.ShardOff(a.w.Layout.Locked(cpu)) + ring.ShGuard + (key+key>>8)>>8%guardWords*8
				}
				word := wordOf(kernelCPU, key)
				if own {
					a.put64(word, key)
				} else {
					a.put64(word, key+1<<16) // another task's
					a.put64(wordOf(0, key), key)
					for _, other := range []uint64{preemptServing, 1 << 16, 1 << 20} {
						if wordOf(kernelCPU, key^other) == word {
							t.Errorf("a context that differs by %#x has the same word", other)
						}
						a.put64(wordOf(kernelCPU, key^other), key)
					}
				}
				for range runs {
					a.add(a.kernelState(r))
				}
				a.run()
				missed := a.counted(1, ring.CtrMissed) + a.counted(2, ring.CtrMissed)
				if own && (missed != 2*runs || a.ctl.Called != 0 || a.get64(word) != key) {
					t.Errorf("missed %d of %d hits, %d calls, word %#x", missed, 2*runs, a.ctl.Called, a.get64(word))
				}
				if !own && (missed != 0 || a.ctl.Called != runs || len(a.records()) != 2*runs || a.get64(word) != 0) {
					t.Errorf("missed %d, %d calls, %d records, word %#x", missed, a.ctl.Called, len(a.records()), a.get64(word))
				}
			})
		}
	}
}
