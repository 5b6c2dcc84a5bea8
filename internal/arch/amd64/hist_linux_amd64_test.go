package amd64

import (
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// arenaHist is where a histogram has its memory: where the pool of return probes is in other tests.
const arenaHist = arenaPool

// TestDetourHistText counts hits by strings: those of at most fetch.HistText bytes in the histogram, where they are what the record of
// the same hit has, longer ones by records.
func TestDetourHistText(t *testing.T) {
	child := buildDetourChild(t)
	counted, recorded := 0, 0
	for vi, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(13, uint64(vi)))
			for _, keys := range []string{"keys=s", "keys=c", "keys=n.log2,c:vals=n", "keys=s,n:vals=n"} {
				for range 6 {
					a := newArena(t, child)
					v.set(a)
					c, n := testHistText(a, r, keys)
					counted, recorded = counted+c, recorded+n
				}
			}
		})
	}
	if counted < 500 || recorded < 100 {
		t.Errorf("%d counted, %d recorded", counted, recorded)
	}
}

// textHit is what tells hits of a histogram apart, and what is added up.
type textHit struct {
	text string
	num  uint64
}

func testHistText(a *arena, r *rand.Rand, keys string) (counted, recorded int) {
	a.t.Helper()
	data := a.at(arenaData)[:arenaHole-arenaData]
	for i := range data { // strings of 0 to some 150 bytes
		if data[i] = byte('a' + r.IntN(2)); r.IntN(40) == 0 {
			data[i] = 0
		}
	}
	prog := filteredStrings()
	def, err := event.ParseHist(keys + ":size=128")
	if err != nil {
		a.t.Fatal(err)
	}
	h := prog.Hist(def, event.HistCallers)
	if h == nil || arenaHist+uint64(HistBytes(h, a.w.Layout.CPUs)) > arenaGate {
		a.t.Fatalf("%s: %+v", keys, h)
	}
	work := map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: prog}, {Event: 3, Prog: prog, Hist: &arch.HistTable{Hist: h, Addr: arenaHist, Code: HistCode()}}}}
	a.probe(hexBytes(a.t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
	a.handler()
	a.ctl.Hole = arenaHole
	const runs = 40
	for i := range runs {
		addr := arenaData + r.Uint64N(0x2000)&^31 // some strings twice
		switch {
		case i%10 == 0:
			addr = arenaHole - r.Uint64N(80) // it may have no end
		case i%10 == 1:
			addr = r.Uint64N(4096)
		}
		a.limits(addr, []uint64{0, 1, 7, 8, 9, 63, 64, 65, 200}[r.IntN(9)])
	}
	a.run()
	text := 0
	if h.Keys[0].Arg == 1 || len(h.Keys) > 1 && h.Keys[1].Arg == 1 {
		text = 1
	}
	want, sums := map[textHit]uint64{}, map[textHit]uint64{}
	recs := a.records()
	for i := 0; i < len(recs); i++ {
		vs, err := prog.Decode(recs[i].rec, int(ArgsOffset(&a.w, &work[0][0])), "")
		if err != nil || recs[i].event != 1 {
			a.t.Fatalf("event %d, %v", recs[i].event, err)
		}
		k := textHit{text: string(vs[text].Str)}
		if vs[text].Fault {
			k.text = "(fault)"
		}
		for j := range h.Keys {
			switch n := &h.Keys[j]; {
			case n.Log2:
				for k.num = 0; 1<<k.num < vs[2].Num; k.num++ {
				}
			case !n.Text:
				k.num = vs[2].Num
			}
		}
		is := len(k.text) > fetch.HistText || text == 1 && vs[1].Fault && vs[2].Num > fetch.HistText // of the latter the length is known
		if long := i+1 < len(recs) && recs[i+1].event == 3; long != is {
			a.t.Fatalf("%s: %q of %d bytes: recorded is %v", keys, k.text, len(k.text), long)
		} else if long {
			recorded++
			i++
			again, err := prog.Decode(recs[i].rec, int(ArgsOffset(&a.w, &work[0][0])), "")
			if err != nil || printed(&again[text]) != printed(&vs[text]) || again[2].Num != vs[2].Num {
				a.t.Fatalf("%v, %v: %v", again, vs, err)
			}
			continue
		}
		counted++
		want[k]++
		sums[k] += vs[2].Num
	}
	entries, dropped, _ := ReadHist(a.at(arenaHist)[:HistBytes(h, a.w.Layout.CPUs)], h, a.w.Layout.CPUs)
	if dropped != 0 || len(entries) != len(want) || counted+recorded != runs {
		a.t.Errorf("%d entries, want %d, %d dropped; %d of %d hits", len(entries), len(want), dropped, counted+recorded, runs)
	}
	for _, e := range entries {
		k := textHit{}
		for i := range e.Keys {
			k.text += e.Texts[i]
			k.num += e.Keys[i]
		}
		if e.Hits != want[k] || len(e.Sums) > 0 && e.Sums[0] != sums[k] {
			a.t.Errorf("%s: %+v: %d hits, want %d, sum %d", keys, e, e.Hits, want[k], sums[k])
		}
	}
	return counted, recorded
}

// TestHistHalfWritten has slots whose keys were being written when their thread was killed: the next hit with these keys makes the slot an
// entry, and one with others goes on to the next slot.
func TestHistHalfWritten(t *testing.T) {
	const killed, passes, runs = 7, 9, 30 // keys
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		a := newArena(t, child)
		v.set(a)
		prog := filteredStrings()
		def, err := event.ParseHist("keys=n:size=128")
		if err != nil {
			t.Fatal(err)
		}
		h := prog.Hist(def, event.HistCallers)
		l := layoutOf(h)
		state := func(key uint64) uint64 { return key * histHash &^ histState }
		slot := func(key uint64) uint64 { return arenaHist + histSlots + state(key)>>(64-l.log)*uint64(l.slot) }
		if slot(killed) == slot(passes) {
			t.Fatal("both keys have the same slot")
		}
		a.put64(arenaHist+histEntries, 2)
		a.put64(slot(killed), state(killed)|histWriting, 0xdead)
		a.put64(slot(passes), state(passes)^1<<20|histWriting, 0xdead)
		work := map[uint64][]arch.ProbeOp{0: {{Event: 3, Prog: prog, Hist: &arch.HistTable{Hist: h, Addr: arenaHist, Code: HistCode()}}}}
		a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
		a.handler()
		for i := range uint64(runs) {
			a.limits(arenaData, []uint64{killed, passes, passes}[i%3])
		}
		a.run()
		entries, dropped, _ := ReadHist(a.at(arenaHist)[:HistBytes(h, a.w.Layout.CPUs)], h, a.w.Layout.CPUs)
		hits := map[uint64]uint64{}
		for _, e := range entries {
			hits[e.Keys[0]] += e.Hits
		}
		if len(entries) != 2 || dropped != 0 || hits[killed] != runs/3 || hits[passes] != 2*runs/3 || a.get64(arenaHist+histEntries) != 3 {
			t.Errorf("%s: %+v, %d dropped, %d taken", v.name, entries, dropped, a.get64(arenaHist+histEntries))
		}
	}
}
