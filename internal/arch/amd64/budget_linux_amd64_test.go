package amd64

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// arenaBudgets is where budgets have their words, behind a histogram at arenaHist.
const arenaBudgets = arenaGate - 0x1000

// budgetAt is where the budget of an event lies.
func budgetAt(event int) uint64 { return arenaBudgets + uint64(event)*arch.BudgetSize }

// budgetOf is the budget of an event.
func budgetOf(event int, timed bool) *arch.Budget {
	return &arch.Budget{Addr: budgetAt(event), Timed: timed, Code: BudgetCode()}
}

// budgetWork puts an event of each kind that has a budget on carryFunction: 1 records, 2 has a filter, 3 counts what passes it, 4 is a
// histogram, 5 a return probe. Event 0 records each hit.
func budgetWork(t *testing.T, pool *arch.Pool, timed bool) (map[uint64][]arch.ProbeOp, *fetch.Hist) {
	t.Helper()
	prog := filteredStrings()
	filter, err := prog.Filter("n < 8", fetch.FilterEnv{})
	if err != nil {
		t.Fatal(err)
	}
	def, err := event.ParseHist("keys=n:size=128")
	if err != nil {
		t.Fatal(err)
	}
	h := prog.Hist(def, event.HistCallers)
	ret := &fetch.Program{Fixed: 8, Return: true, Args: []fetch.Arg{{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDX)}, Size: 8, AtEntry: true}}}
	return map[uint64][]arch.ProbeOp{
		0: {
			{Event: 0, Prog: prog},
			{Event: 1, Prog: prog, Budget: budgetOf(1, timed)},
			{Event: 2, Prog: prog, Filter: filter, Budget: budgetOf(2, timed)},
			{Event: 3, Prog: prog, Filter: filter, CountPassing: true, Budget: budgetOf(3, timed)},
			{Event: 4, Prog: prog, Hist: &arch.HistTable{Hist: h, Addr: arenaHist, Code: HistCode()}, Budget: budgetOf(4, timed)},
			{Event: 5, Role: arch.RoleEntry, Prog: ret, Pool: pool},
		},
		carryExit: {{Event: 5, Role: arch.RoleExit, Prog: ret, Pool: pool, Instance: 5, Budget: budgetOf(5, timed)}},
	}, h
}

// TestDetourBudget has hits with limits of none, some and all of them: as many as the limit says are recorded, filtered or counted in the
// histogram, the first ones, and the others are counted as over. What runs without probes comes out the same.
func TestDetourBudget(t *testing.T) {
	const runs = 40
	child := buildDetourChild(t)
	for vi, v := range detourVariants {
		for _, limit := range []uint64{0, 1, 7, runs - 1, runs, ^uint64(0)} {
			t.Run(fmt.Sprintf("%s_%d", v.name, limit), func(t *testing.T) {
				r := rand.New(rand.NewPCG(17, uint64(vi)))
				a := newArena(t, child)
				v.set(a)
				work, h := budgetWork(t, &arch.Pool{Base: a.grow(PoolBytes(6, SlotStride(1))), Slots: 6, Stride: SlotStride(1)}, vi%2 == 0)
				for e := 1; e <= 5; e++ {
					a.put64(budgetAt(e)+arch.BudgetLimit, limit)
				}
				a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
				a.handler()
				var passed uint64 // of the hits that are within
				for i := range uint64(runs) {
					n := r.Uint64N(16)
					a.limits(arenaData, n)
					if i < limit && n < 8 {
						passed++
					}
				}
				a.run()
				a.checkBudgets(work, h, runs, min(limit, runs), passed)
			})
		}
	}
}

// checkBudgets compares what the events of budgetWork have counted with what they must have: within their limits, and of those what has
// passed the filter.
func (a *arena) checkBudgets(work map[uint64][]arch.ProbeOp, h *fetch.Hist, runs, within, passed uint64) {
	a.t.Helper()
	var read [6]uint64
	for _, rec := range a.records() {
		read[rec.event]++
	}
	if want := [6]uint64{runs, within, passed, 0, 0, within}; read != want {
		a.t.Errorf("records %v, want %v", read, want)
	}
	for e := 1; e <= 5; e++ {
		hits, over := a.get64(budgetAt(e)+arch.BudgetHits), a.get64(budgetAt(e)+arch.BudgetOver)
		if hits != runs || over != runs-within {
			a.t.Errorf("event %d: %d hits, %d over, want %d and %d", e, hits, over, runs, runs-within)
		}
		wants := uint64(0) // the first one is timed
		if work[0][1].Budget.Timed && within > 0 {
			wants = 1
		}
		if n, ticks := a.get64(budgetAt(e)+arch.BudgetTimed), a.get64(budgetAt(e)+arch.BudgetTicks); n != wants || ticks > n*arch.BudgetLongest || (n > 0) != (ticks > 0) {
			a.t.Errorf("event %d: %d ticks of %d hits, want %d", e, ticks, n, wants)
		}
	}
	if not := a.counted(2, ring.CtrHits); not != within-passed {
		a.t.Errorf("%d have not passed, want %d", not, within-passed)
	}
	if hits, not := a.counted(3, ring.CtrHits), a.counted(3, ring.CtrFiltered); hits != passed || not != within-passed {
		a.t.Errorf("the counter has %d and %d, want %d and %d", hits, not, passed, within-passed)
	}
	entries, dropped, _ := ReadHist(a.at(arenaHist)[:HistBytes(h, a.w.Layout.CPUs)], h, a.w.Layout.CPUs)
	for _, e := range entries {
		dropped += e.Hits
	}
	if dropped != within {
		a.t.Errorf("the histogram has %d hits, want %d", dropped, within)
	}
	pool := work[carryExit][0].Pool
	for i := range uint64(1<<pool.Slots + bucketLen) {
		if key := a.get64(pool.Base + i<<pool.Stride); key != 0 {
			a.t.Errorf("slot %d of the pool is still taken: %#x", i, key)
		}
	}
}

// TestDetourBudgetMoves moves the limit up while a thread runs, and its signal handlers do: no more hits are recorded than the
// last limit says, and none is uncounted.
func TestDetourBudgetMoves(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, 6))
			a := newArena(t, child)
			v.set(a)
			prog := &fetch.Program{Fixed: 8, Args: []fetch.Arg{{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Size: 8}}}
			a.probe(hexBytes(t, carryFunction), map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: prog, Budget: budgetOf(1, true)}}}, arch.Policy{Force: arch.TacticJump})
			a.handler()
			for range 50 {
				a.add(a.state(r))
			}
			a.nested(a.state(r))
			a.ctl.Mode, a.ctl.Rounds = modeStorm, 1000
			var limit atomic.Uint64
			a.beside = func(mem []byte) {
				n := limit.Add(1)
				binary.LittleEndian.PutUint64(mem[budgetAt(1)+arch.BudgetLimit-arenaAddr:], n)
			}
			a.run()
			read, lost := uint64(len(a.records())), a.counted(1, ring.CtrLost)
			hits, over, last := a.get64(budgetAt(1)+arch.BudgetHits), a.get64(budgetAt(1)+arch.BudgetOver), limit.Load()
			if runs := a.ctl.Did + a.ctl.DidNested; hits != runs || read+lost+over != runs || read+lost > last || read == 0 {
				t.Errorf("%d runs: %d hits, %d read, %d lost, %d over, limit %d", runs, hits, read, lost, over, last)
			}
		})
	}
}
