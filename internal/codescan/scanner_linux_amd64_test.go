package codescan

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"

	"golang.org/x/sys/unix"
)

// file is a program that does not run: its code can be read, its memory can not.
type file struct {
	target.Target
	space *symbol.Space
}

func (f *file) Capabilities() target.Capabilities { return target.Capabilities{} }
func (f *file) Arch() arch.Arch                   { return native.Arch }
func (f *file) Space() *symbol.Space              { return f.space }

func (f *file) Read(addr uint64, _ []byte) error {
	return errno.Errorf(unix.EFAULT, "0x%x: the program does not run", addr)
}

// load makes the Scanner of a program, and the program's only module.
func load(t *testing.T, path string) (*Scanner, *symbol.Module) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, err := symbol.Open(bytes.NewReader(b), int64(len(b)), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &file{space: symbol.NewSpace()}
	m := f.space.Add(im, 0x555555554000, path)
	m.Main = true
	return New(f), m
}

func lookup(t *testing.T, m *symbol.Module, name string) symbol.Resolved {
	t.Helper()
	fns, err := m.Image.Lookup(name)
	if err != nil || len(fns) != 1 {
		t.Fatalf("%s: %d functions, %v", name, len(fns), err)
	}
	return symbol.Resolved{Module: m, Func: fns[0], Vaddr: fns[0].Addr, Addr: m.Runtime(fns[0].Addr)}
}

// TestFunctionsAtOnce: many functions that are read by several goroutines are the same as one after another.
func TestFunctionsAtOnce(t *testing.T) {
	path := testprog.Build(t, "gowork")
	all := func(workers int) []string {
		s, m := load(t, path)
		fns := m.Image.Funcs()
		out := make([]string, len(fns))
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := w; i < len(fns); i += workers {
					f, err := s.Function(symbol.Resolved{Module: m, Func: fns[i]})
					if err != nil {
						out[i] = err.Error()
						continue
					}
					code, err := f.Text(f.Start, int(fns[i].Size))
					exits, why := f.Code.Exits()
					out[i] = fmt.Sprint(f.Name, f.Code.EntryPoint(), exits, why, err, code)
				}
			})
		}
		wg.Wait()
		return out
	}
	want, got := all(1), all(4)
	if len(want) < 1000 {
		t.Fatalf("%d functions", len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%.200s, one after another %.200s", got[i], want[i])
		}
	}
}

// TestReturnReaders: a function that reads its return address does so for who jumps to it.
func TestReturnReaders(t *testing.T) {
	s, m := load(t, testprog.Build(t, "callers"))
	readers := s.ReturnReaders(func(uint64) *Function { return nil })
	for name, why := range map[string]string{
		"deep": "", "next": "dlsym looks at its return address", "own": "own reads its return address", "over": "it jumps to another function: own reads",
	} {
		f, err := s.Function(lookup(t, m, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := readers.Function(m, &f); (why == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", name, err, why)
		}
	}
	if never, unknown := readers.Mapped(); never != nil || unknown != nil {
		t.Errorf("mapped: %v, %v", never, unknown)
	}
	if err := ReturnDenied(m, lookup(t, m, "next").Func); err != nil {
		t.Error(err)
	}
}
