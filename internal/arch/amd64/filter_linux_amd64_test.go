package amd64

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// filteredStrings are arguments for filters on strings: one that ends in a NUL, the same with its length in a register, and the length.
func filteredStrings() *fetch.Program {
	rdi, rdx := fetch.Base{Reg: fetch.Reg(RDI)}, fetch.Base{Reg: fetch.Reg(RDX)}
	return &fetch.Program{Fixed: 24, Dynamic: true, Args: []fetch.Arg{
		{Name: "s", Store: fetch.StoreString, Base: rdi, Derefs: []int64{0}, Size: 1, Type: fetch.Type{Kind: event.String}},
		{Name: "c", Store: fetch.StoreCounted, Base: rdi, Len: rdx, Size: 1, Off: 8, Type: fetch.Type{Kind: event.GoString}},
		{Name: "n", Store: fetch.StoreValue, Base: rdx, Size: 8, Off: 16, Type: fetch.Type{Kind: event.Unsigned, Size: 8}},
	}}
}

// randomFilter makes a filter on filteredStrings whose strings are of a, b and what patterns have.
func randomFilter(r *rand.Rand) string {
	const alphabet = "aabb**?[ab][!a][^b]"
	text := func(from string) string {
		var b strings.Builder
		for range r.IntN(24) {
			b.WriteByte(from[r.IntN(len(from))])
		}
		return b.String()
	}
	test := func() string {
		field := []string{"s", "c"}[r.IntN(2)]
		switch r.IntN(5) {
		case 0:
			return fmt.Sprintf("n < %d", r.IntN(40))
		case 1:
			return fmt.Sprintf("%s %s %q", field, []string{"==", "!="}[r.IntN(2)], strings.Repeat("ab", r.IntN(10))+text("a"))
		}
		not := []string{"", "!"}[r.IntN(2)]
		return fmt.Sprintf("%s ~ %q", field, not+text(alphabet))
	}
	s := test()
	for range r.IntN(3) {
		s += []string{" && ", " || "}[r.IntN(2)] + []string{"", "!"}[r.IntN(2)] + "(" + test() + ")"
	}
	return s
}

// TestDetourFilters runs filters on strings at the hit, and compares what passes with what the reader says of the record that is made
// without a filter at the same hit.
func TestDetourFilters(t *testing.T) {
	child := buildDetourChild(t)
	passed, stopped := 0, 0
	for vi, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(11, uint64(vi)))
			for range 40 {
				a := newArena(t, child)
				v.set(a)
				p, s := testFilters(a, r)
				passed, stopped = passed+p, stopped+s
			}
		})
	}
	if passed < 500 || stopped < 500 {
		t.Errorf("%d have passed, and %d not", passed, stopped)
	}
}

func testFilters(a *arena, r *rand.Rand) (passed, stopped int) {
	a.t.Helper()
	data := a.at(arenaData)[:arenaHole-arenaData]
	for i := range data {
		data[i] = "ababababab\x00"[r.IntN(11)]
	}
	prog := filteredStrings()
	text := randomFilter(r)
	filter, err := prog.Filter(text, fetch.FilterEnv{})
	if err != nil || !filter.InCode(prog) {
		a.t.Fatalf("%s: %v", text, err)
	}
	work := map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: prog}, {Event: 3, Prog: prog, Filter: filter}, {Event: 4, Prog: prog, Filter: filter, CountPassing: true}}}
	a.probe(hexBytes(a.t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
	a.handler()
	a.ctl.Hole = arenaHole
	const runs = 24
	for range runs {
		addr := arenaData + r.Uint64N(0x2000)
		switch r.IntN(6) {
		case 0:
			addr = arenaHole - r.Uint64N(20) // it may have no end
		case 1:
			addr = r.Uint64N(4096)
		}
		a.limits(addr, r.Uint64N(30))
	}
	a.run()
	recs := a.records()
	for i := 0; i < len(recs); i++ {
		vs, err := prog.Decode(recs[i].rec, int(ArgsOffset(&a.w, &work[0][0])), "")
		if err != nil || recs[i].event != 1 {
			a.t.Fatalf("event %d, %v", recs[i].event, err)
		}
		pass := i+1 < len(recs) && recs[i+1].event == 3
		if want := filter.Match(vs, &fetch.FilterHit{}); pass != want {
			a.t.Fatalf("%s of %q, %q, %d: %v, want %v", text, vs[0].Str, vs[1].Str, vs[2].Num, pass, want)
		}
		if !pass {
			stopped++
			continue
		}
		passed++
		i++
		again, err := prog.Decode(recs[i].rec, int(ArgsOffset(&a.w, &work[0][0])), "")
		if err != nil || fmt.Sprint(printed(&again[0]), printed(&again[1])) != fmt.Sprint(printed(&vs[0]), printed(&vs[1])) {
			a.t.Fatalf("%v, %v: %v", again, vs, err)
		}
	}
	if n := a.counted(3, ring.CtrHits); passed+stopped != runs || n != uint64(stopped) {
		a.t.Fatalf("%d and %d of %d, %d counted", passed, stopped, runs, n)
	}
	if hits, not := a.counted(4, ring.CtrHits), a.counted(4, ring.CtrFiltered); hits != uint64(passed) || not != uint64(stopped) {
		a.t.Fatalf("the counter has %d and %d, want %d and %d", hits, not, passed, stopped)
	}
	return passed, stopped
}
