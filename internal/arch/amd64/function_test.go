package amd64

import (
	"fmt"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// A function that was released, and whose memory others have had since, answers what it
// answered before, and what one answers that was never released.
func TestReleasedFunctionAnswersTheSame(t *testing.T) {
	im := openImage(t, "/lib/x86_64-linux-gnu/libc.so.6")
	type pair struct{ released, kept arch.Function }
	var fns []pair
	for i, f := range im.funcs {
		if i%3 != 0 {
			continue
		}
		in := &arch.Func{
			Name: f.name, Addr: f.addr, Code: im.bytes(f.addr, f.end-f.addr), Mem: im.mem, Inside: im.inside,
		}
		var p pair
		var err error
		if p.released, err = X86.Analyse(in); err != nil {
			t.Fatal(err)
		}
		if p.kept, err = X86.Analyse(in); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // half of them are asked before, and may remember
			answers(p.released)
		}
		p.released.Release()
		fns = append(fns, p)
	}
	for _, p := range fns {
		want := answers(p.kept)
		if got := answers(p.released); got != want {
			t.Fatalf("released: %s\nkept: %s", got, want)
		}
		p.released.Release()
	}
	if len(fns) < 900 {
		t.Errorf("only %d functions", len(fns))
	}
}

// answers writes out what a function says of its entry, its exits, and regions for them.
func answers(fn arch.Function) string {
	exits, err := fn.Exits()
	s := fmt.Sprintf("entry %x exits %v %v:", fn.EntryPoint(), exits, err)
	points := []uint64{fn.EntryPoint()}
	for _, x := range exits {
		points = append(points, x.Addr)
	}
	regions, refused := fn.Plan(points, arch.Policy{})
	for _, r := range regions {
		s += fmt.Sprintf(" %x %s %x %v", r.Start(), r.Tactic(), r.Inner(), r.Why())
		d, err := fn.Detour(r.Start()&^0xfff+1<<20, r, nil, &arch.CodegenEnv{})
		if err != nil {
			return s + err.Error()
		}
		s += fmt.Sprintf(" % x", d.Code)
	}
	for _, p := range points {
		s += fmt.Sprint(" ", refused[p], fn.Check(p))
	}
	return s
}
