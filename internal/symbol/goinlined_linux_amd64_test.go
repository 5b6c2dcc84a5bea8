package symbol_test

import (
	"os"
	"testing"

	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/testprog"
)

// TestGoInlined: the function table tells of as many inlined calls of each function as the debug information does, and of those alone in
// a stripped program.
func TestGoInlined(t *testing.T) {
	open := func(flags ...string) *symbol.Image {
		path := testprog.Build(t, "gowork", flags...)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		im, err := symbol.Open(f, st.Size(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return im
	}
	whole, stripped := open(), open("-ldflags=-s -w")
	debug, err := debuginfo.New(whole.DebugSection)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, fn := range whole.Funcs() {
		if fn.Lang != symbol.LangGo {
			continue
		}
		want, err := debug.Inlined(func(name, _ string) bool { return name == fn.Name })
		if err != nil {
			t.Fatal(err)
		}
		for _, im := range []*symbol.Image{whole, stripped} {
			if n, ok := im.GoInlined(fn.Name); !ok || n != len(want) {
				t.Errorf("%s: %d inlined calls, %v, the debug information tells of %d", fn.Name, n, ok, len(want))
			}
		}
		calls += len(want)
	}
	if calls < 500 {
		t.Errorf("%d inlined calls", calls)
	}
}
