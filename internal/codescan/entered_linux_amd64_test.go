package codescan

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/testprog"
)

// TestSearched: jumps into functions are looked for in all of C, and nowhere in Go.
func TestSearched(t *testing.T) {
	path := testprog.Build(t, "gocgo", "CGO_ENABLED=1", "-ldflags=-linkmode=internal")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, err := symbol.Open(bytes.NewReader(b), int64(len(b)), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := &text{im: im, funcs: im.Funcs()}
	ranges := x.searched()
	var golang, foreign int
	for _, f := range x.funcs {
		in := slices.ContainsFunc(ranges, func(r symbol.Range) bool { return r.Start < f.End() && f.Addr < r.End })
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
