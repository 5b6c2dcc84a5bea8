package amd64

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// treeFunction calls itself rdi times, and if rsi is not 0 the innermost call leaves all of them: it returns from where rdx points.
//
//	0  test %rdi,%rdi   3  jz 16         5  dec %rdi   8  call 0   13 nop   15 ret
//	16 test %rsi,%rsi   19 jz 15         21 mov %rdx,%rsp   24 pop %rcx   25 jmp *%rcx
const (
	treeFunction = "4885ff 740b 48ffcf e8f3ffffff 6690 c3 4885f6 74fa 4889d4 59 ffe1"
	treeExit     = 15
)

// The events of sampledWork.
const (
	eventEnter = 1
	eventLeave = 2
	eventAll   = 3 // each entry
)

// sampledWork decides at the entry of a function and at its exit.
func sampledWork(table, every, exit uint64, pool *arch.Pool) map[uint64][]arch.ProbeOp {
	sp := &fetch.Program{Fixed: 8, Args: []fetch.Arg{{Store: fetch.StoreValue, Base: fetch.Base{Kind: fetch.BaseDepth, Reg: fetch.Reg(RSP)}, Size: 8}}}
	ret := *sp
	ret.Return = true
	of := func(r arch.SampleRole) *arch.Sample {
		return &arch.Sample{Role: r, Table: table, Every: every, Func: arenaProbed, Paired: r == arch.SampleLeave, Code: SampleCode()}
	}
	return map[uint64][]arch.ProbeOp{
		0: {
			{Event: eventAll, Prog: sp},
			{Event: eventEnter, Prog: sp, Sample: of(arch.SampleEnter)},
			{Event: eventLeave, Role: arch.RoleEntry, Prog: &ret, Pool: pool, Sample: of(arch.SampleLeave)},
		},
		exit: {{Event: eventLeave, Role: arch.RoleExit, Prog: &ret, Pool: pool, Instance: eventLeave, Sample: of(arch.SampleLeave)}},
	}
}

// sampleModel decides as the table does, of one thread.
type sampleModel struct {
	every, decided          uint64
	in, kept                bool
	sp                      uint64 // of the outermost call
	entered, left, dropped  uint64
	returned, droppedReturn uint64
}

func (m *sampleModel) enter(sp uint64) {
	if !m.in || sp >= m.sp {
		m.in, m.sp, m.kept = true, sp, m.decided%m.every == 0
		m.decided++
	}
	if m.kept {
		m.entered++
	} else {
		m.dropped++
	}
}

func (m *sampleModel) leave(sp uint64) {
	m.returned++
	switch {
	case !m.in, sp > m.sp:
		m.in = false
		m.droppedReturn++
		return
	case m.kept:
		m.left++
	default:
		m.droppedReturn++
	}
	m.in = m.in && sp != m.sp
}

// run is a run of treeFunction.
func (m *sampleModel) run(sp, deep uint64, leaves bool) {
	for i := range deep + 1 {
		m.enter(sp - 8*i)
	}
	for i := int64(deep); i >= 0 && !leaves; i-- {
		m.leave(sp - 8*uint64(i))
	}
}

// TestDetourSample runs trees of calls, some of which are left without a return, and compares with a model which of them are recorded.
func TestDetourSample(t *testing.T) {
	child := buildDetourChild(t)
	for vi, v := range detourVariants {
		for _, every := range []uint64{1, 2, 3, 12, 100} {
			t.Run(fmt.Sprintf("%s_%d", v.name, every), func(t *testing.T) {
				r := rand.New(rand.NewPCG(29, uint64(vi)))
				a := newArena(t, child)
				v.set(a)
				pool := &arch.Pool{Base: a.grow(PoolBytes(8, SlotStride(0))), Slots: 8, Stride: SlotStride(0)}
				table := a.grow(SampleBytes)
				a.probe(hexBytes(t, treeFunction), sampledWork(table, every, treeExit, pool), arch.Policy{})
				a.handler()
				m := &sampleModel{every: every}
				for range 150 {
					sp, deep, leaves := arenaStack+8*r.Uint64N(64), r.Uint64N(6), r.IntN(4) == 0
					regs := [16]uint64{RSP: sp, RDI: deep, RDX: sp}
					if leaves {
						regs[RSI] = 1
					}
					a.add(regs, 0x202)
					m.run(sp, deep, leaves)
				}
				a.run()
				a.checkSample(table, m)
			})
		}
	}
}

// checkSample compares what was recorded with a model.
func (a *arena) checkSample(table uint64, m *sampleModel) {
	a.t.Helper()
	var read [4]uint64
	for _, rec := range a.records() {
		read[rec.event]++
	}
	if read[eventEnter] != m.entered || read[eventLeave] != m.left || read[eventAll] != m.entered+m.dropped {
		a.t.Errorf("%d entries and %d returns are recorded of %d: want %+v", read[eventEnter], read[eventLeave], read[eventAll], m)
	}
	if n, rets := a.counted(eventEnter, ring.CtrUnsampled), a.counted(eventLeave, ring.CtrHits); n != m.dropped || rets != m.droppedReturn {
		a.t.Errorf("%d entries and %d returns count as not recorded: want %+v", n, rets, m)
	}
	if n := a.counted(eventEnter, ring.CtrMissed) + a.counted(eventEnter, ring.CtrLost); n != 0 {
		a.t.Errorf("%d are missed or lost", n)
	}
	want := m.decided
	if m.every == 1 { // nothing is decided
		want = 0
	}
	if n := a.get64(table + sampleCounter); n != want {
		a.t.Errorf("%d decisions, want %d", n, want)
	}
	if n := a.counted(eventLeave, ring.CtrUnwound); n > m.entered-m.left {
		a.t.Errorf("%d calls count as unwound, want %+v", n, m)
	}
	taken := 0
	for i := uint64(0); i < 1<<arch.SampleSlots+bucketLen; i++ {
		slot := table + sampleFirst + i<<sampleStride
		if a.get64(slot+sampleKey) == 0 {
			continue
		}
		taken++
		if owner, state := a.get64(slot+sampleOwner), a.get64(slot+sampleState); owner != a.ctl.TID || (state != 0) != m.in {
			a.t.Errorf("owner %d, state %#x: want %d, %+v", owner, state, a.ctl.TID, m)
		}
	}
	if taken != 1 {
		a.t.Errorf("%d slots are taken", taken)
	}
}

// TestDetourSampleInterrupted interrupts the decisions at each of their instructions, by a signal whose handler runs the function too: each call
// has both records or none, and as many outermost calls are kept as the counter says.
func TestDetourSampleInterrupted(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(8, 9))
			a := newArena(t, child)
			v.set(a)
			pool := &arch.Pool{Base: a.grow(PoolBytes(6, SlotStride(0))), Slots: 6, Stride: SlotStride(0)}
			table := a.grow(SampleBytes)
			a.probe(hexBytes(t, carryFunction), sampledWork(table, 2, carryExit, pool), arch.Policy{Force: arch.TacticJump})
			a.handler()
			a.add(a.state(r))
			a.nested(a.state(r))
			places := a.instructions()
			a.put64(arenaActions, places...)
			a.ctl.Mode, a.ctl.Places, a.ctl.NPlaces = modeSteps, arenaActions, uint64(len(places))
			a.run()
			runs := a.ctl.Did + a.ctl.DidNested
			depths := map[uint64]int{}
			var entered, left uint64
			for _, rec := range a.records() {
				switch depth := u64At(rec.rec, len(rec.rec)-8); rec.event {
				case eventEnter:
					entered++
					depths[depth]++
				case eventLeave:
					left++
					depths[depth]--
				}
			}
			for depth, n := range depths {
				if n != 0 {
					t.Errorf("depth %d: %d more entries than returns", depth, n)
				}
			}
			lost := a.counted(eventEnter, ring.CtrLost)
			if n := a.counted(eventEnter, ring.CtrUnsampled); entered+n != runs || left != entered || lost != 0 || a.counted(eventEnter, ring.CtrMissed) != 0 {
				t.Errorf("%d runs: %d entries and %d returns are recorded, %d entries are not, %d are lost", runs, entered, left, n, lost)
			}
			if n := a.get64(table + sampleCounter); entered < n/2 || n < a.ctl.Did {
				t.Errorf("%d decisions, %d entries are recorded", n, entered)
			}
		})
	}
}
