package codescan

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/testprog"
)

// TestSearched: jumps into functions are looked for in all of C, and nowhere in Go.
func TestSearched(t *testing.T) {
	s, m := load(t, testprog.Build(t, "gocgo", "CGO_ENABLED=1", "-ldflags=-linkmode=internal"))
	x := s.text(m.Image)
	ranges := x.searched()
	var golang, foreign int
	for _, f := range x.funcs {
		in := slices.ContainsFunc(ranges, func(r interval.Range) bool { return r.Start < f.End() && f.Addr < r.End })
		if goes := f.Lang == symbol.LangGo; goes == in {
			t.Errorf("%s (%v) searched: %v", f.Name, f.Lang, in)
		} else if goes {
			golang++
		} else {
			foreign++
		}
	}
	if golang < 1000 || foreign < 20 || len(ranges) > 20 {
		t.Errorf("%d functions of Go, %d others in %d ranges", golang, foreign, len(ranges))
	}
}

// TestEntered: a short jump from beside a function into its middle is found, and a long one from afar.
func TestEntered(t *testing.T) {
	s, m := load(t, testprog.Build(t, "cross"))
	r := lookup(t, m, "middle")
	x := s.text(m.Image)
	tail := r.Func.Addr + 3 // behind mov %rdi, %rax
	if got := x.entered(r.Func); !slices.Equal(got, []uint64{tail, tail}) {
		t.Errorf("entered at %#x, want %#x by two ways", got, tail)
	}
	if got := x.neighbours(r.Func); !slices.Equal(got, []uint64{tail}) {
		t.Errorf("from beside at %#x, want %#x", got, tail)
	}
	if got := x.entered(lookup(t, m, "main").Func); len(got) > 0 {
		t.Errorf("main is entered at %#x", got)
	}
}
