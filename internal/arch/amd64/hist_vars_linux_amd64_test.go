package amd64

import (
	"maps"
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// TestDetourHistVars has one hit set variables of an entry and others read them in the entry of their own key, and compares with a model:
// what is read once, what is not set, sums of differences, and what is traced. In the table there are slots that threads have been about to
// write when they were killed: of one of the keys, and of another one in a key's way.
func TestDetourHistVars(t *testing.T) {
	child := buildDetourChild(t)
	for vi, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(17, uint64(vi)))
			for range 3 {
				a := newArena(t, child)
				v.set(a)
				testHistVars(a, r)
			}
		})
	}
}

// histTable gives a histogram its memory, behind that of others.
func (a *arena) histTable(at *uint64, h *fetch.Hist) *arch.HistTable {
	a.t.Helper()
	t := &arch.HistTable{Hist: h, Addr: *at, Code: HistCode()}
	if *at += uint64(HistBytes(h, a.w.Layout.CPUs)+63) &^ 63; *at > arenaGate {
		a.t.Fatalf("histograms end at 0x%x", *at)
	}
	return t
}

func testHistVars(a *arena, r *rand.Rand) {
	a.t.Helper()
	arg := func(name string, reg Reg, size, off int) fetch.Arg {
		return fetch.Arg{Name: name, Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(reg)}, Size: size, Off: off, Type: fetch.Type{Kind: event.Signed, Size: size}}
	}
	prog := &fetch.Program{Fixed: 32, Args: []fetch.Arg{arg("from", RDI, 8, 0), arg("to", RDX, 8, 8), arg("n", RSI, 4, 16), arg("m", R8, 8, 24)}}
	num := func(i int) fetch.HistNumber {
		return fetch.HistNumber{Arg: i, Signed: true, Size: prog.Args[i].Size}
	}
	since, clock := fetch.HistNumber{From: fetch.HistSince}, fetch.HistNumber{From: fetch.HistClock}
	at := uint64(arenaHist)
	sets := a.histTable(&at, &fetch.Hist{Keys: []fetch.HistNumber{num(0)}, Size: 8, Sets: []fetch.HistNumber{num(2), clock}})
	reads := a.histTable(&at, &fetch.Hist{Keys: []fetch.HistNumber{num(1)}, Vals: []fetch.HistNumber{since}, Size: 8, Since: &fetch.HistVar{From: num(3)}})
	times := a.histTable(&at, &fetch.Hist{Keys: []fetch.HistNumber{num(1)}, Vals: []fetch.HistNumber{since}, Size: 8, Since: &fetch.HistVar{Word: 1, From: clock}})
	log2 := since
	log2.Log2 = true
	traced := a.histTable(&at, &fetch.Hist{Keys: []fetch.HistNumber{log2, num(0)}, Vals: []fetch.HistNumber{num(1)}, Size: 512})
	reads.Of, times.Of, reads.Traces = sets, sets, []*arch.HistTable{traced}
	work := map[uint64][]arch.ProbeOp{0: {
		{Event: 1, Prog: prog, Hist: sets}, {Event: 3, Prog: prog, Hist: reads}, {Event: 4, Prog: prog, Hist: times, Tick: 1 << 32},
	}}
	a.probe(hexBytes(a.t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
	const keys = 7
	l := layoutOf(sets.Hist)
	for i, key := range []uint64{3, 5} { // somebody was about to write key 3, and something else where key 5 goes
		hash := key * histHash
		a.put64(sets.Addr+histSlots+hash>>(64-l.log)*uint64(l.slot), hash&^histState|histWriting+uint64(i)<<40)
		a.put64(sets.Addr+histEntries, uint64(i+1)/2)
	}
	type trace struct{ d, from uint64 }
	vars, stamped := map[uint64]uint64{}, map[uint64]bool{}
	begun, hits, sums, stamps := map[uint64]uint64{}, map[uint64]uint64{}, map[uint64]uint64{}, map[uint64]uint64{}
	traces, unset, unstamped := map[trace]uint64{}, uint64(0), uint64(0)
	const runs = 40
	for range runs {
		from, to, n, m := r.Uint64N(keys), r.Uint64N(keys), uint64(int32(r.Uint32())), r.Uint64()>>r.IntN(64)
		a.add([16]uint64{RSP: arenaStack, RDI: from, RSI: n, RDX: to, R8: m}, 0x202)
		begun[from]++
		vars[from], stamped[from] = n, true
		if stamped[to] {
			stamps[to]++
		} else {
			unstamped++
		}
		delete(stamped, to)
		v, ok := vars[to]
		if !ok {
			unset++
			continue
		}
		delete(vars, to)
		hits[to]++
		sums[to] += m - v
		exp := uint64(0)
		for ; exp < 64 && 1<<exp < m-v; exp++ {
		}
		traces[trace{exp, from}]++
	}
	a.run()
	read := func(t *arch.HistTable) (hits, sums map[uint64]uint64, entries []fetch.HistEntry, unset uint64) {
		hits, sums = map[uint64]uint64{}, map[uint64]uint64{}
		entries, dropped, unset := ReadHist(a.at(t.Addr)[:HistBytes(t.Hist, a.w.Layout.CPUs)], t.Hist, a.w.Layout.CPUs)
		for _, e := range entries {
			hits[e.Keys[0]] += e.Hits
			for _, s := range e.Sums {
				sums[e.Keys[0]] += s
			}
		}
		if dropped != 0 {
			a.t.Errorf("%d dropped", dropped)
		}
		return hits, sums, entries, unset
	}
	if got, _, all, _ := read(sets); !maps.Equal(got, begun) || len(all) != len(begun) {
		a.t.Errorf("%v, want %v", all, begun)
	}
	gotHits, gotSums, _, n := read(reads)
	if !maps.Equal(gotHits, hits) || !maps.Equal(gotSums, sums) || n != unset {
		a.t.Errorf("%v, sums %v, %d unset, want %v, %v, %d", gotHits, gotSums, n, hits, sums, unset)
	}
	gotHits, gotSums, _, n = read(times)
	if !maps.Equal(gotHits, stamps) || n != unstamped {
		a.t.Errorf("%v, %d unset, want %v, %d", gotHits, n, stamps, unstamped)
	}
	for k, ticks := range gotSums {
		if ticks == 0 || ticks > 1<<40 {
			a.t.Errorf("key %d: %d ticks", k, ticks)
		}
	}
	_, _, entries, _ := read(traced)
	for _, e := range entries {
		k := trace{e.Keys[0], e.Keys[1]}
		if e.Hits != traces[k] {
			a.t.Errorf("%+v: %d times, want %d", k, e.Hits, traces[k])
		}
		delete(traces, k)
	}
	if len(traces) != 0 {
		a.t.Errorf("not traced: %v", traces)
	}
}
