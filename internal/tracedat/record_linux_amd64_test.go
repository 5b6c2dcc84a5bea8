package tracedat

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// testEnv is the least that arguments need.
type testEnv struct{}

func (testEnv) Reg(string) (fetch.Base, bool)  { return fetch.Base{Kind: fetch.BaseReg, Reg: 7}, true }
func (testEnv) Stack() fetch.Base              { return fetch.Base{Kind: fetch.BaseReg, Reg: 4} }
func (testEnv) Arg(int) (fetch.Base, error)    { return fetch.Base{Kind: fetch.BaseReg, Reg: 7}, nil }
func (testEnv) RetVal(int) (fetch.Base, error) { return fetch.Base{Kind: fetch.BaseReg}, nil }
func (testEnv) Addr(a uint64) uint64           { return a }
func (testEnv) File(off int64) uint64          { return uint64(off) }
func (testEnv) Symbol(string) (uint64, error)  { return 0x1000, nil }

// testNames is a program with a function at 0x1000, and a library with one at 0x7000.
type testNames struct{}

func (testNames) Comm(int) string { return "server" }

func (testNames) Symbol(addr uint64) (fetch.Sym, bool) {
	if addr-0x7000 < 0x100 {
		return fetch.Sym{Name: "read", Off: addr - 0x7000, Size: 0x100, Module: "libc.so.6"}, true
	}
	return fetch.Sym{Name: "main.(*T[go.shape.int]).serve", Off: addr - 0x1000, Size: 0x100}, addr-0x1000 < 0x100
}

// record fills the slots of a program's record: k is which of its hits it is, and the number of its callers.
func record(p *fetch.Program, k int) []byte {
	rec := make([]byte, 16+p.Fixed)
	text := func(at int) {
		binary.LittleEndian.PutUint64(rec[at:], uint64(len(rec))<<32|6)
		rec = append(rec, "he\"lo\x00"...)
	}
	if p.Stack > 0 {
		for i, v := range []uint64{uint64(k), 0x7010, 0x1100}[:k+1] {
			binary.LittleEndian.PutUint64(rec[16+p.StackOff+8*i:], v)
		}
	}
	for i := range p.Args {
		a := &p.Args[i]
		at := 16 + a.Off
		switch a.Store {
		case fetch.StoreValue:
			binary.LittleEndian.PutUint64(rec[at:], uint64(0x1000+0x41*k))
		case fetch.StoreString:
			if k > 0 { // else it could not be read
				text(at)
			}
		case fetch.StorePtrs:
			for n := range a.Count {
				text(at + 8*n)
			}
		case fetch.StoreArray:
			for n := range a.Size * a.Count {
				rec[at+n] = byte(0x41 + n + k)
			}
		}
	}
	return rec
}

// write writes a file with hits of all forms of fields on three CPUs.
func write(t *testing.T) (path string, hits int) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "trace.dat")
	r, err := Create(path, testNames{}, "Linux test", "kprobe test")
	if err != nil {
		t.Fatal(err)
	}
	r.Stacks()
	for i, def := range []string{
		"p:a f", "p:b f n=%di:s32 m=%si:u8 x=%dx:x64 w=%ax:x16 c=%ax:char y=%ax:symbol",
		"p:c f s=+0(%di):string z=%ax:symstr k=$comm l=\\\"lit\" n=%di:s64", "p:name_of_twenty_chars f", "r:longer_name_than_twenty_chars f r=$retval:u8",
		"p:d f v=+0(%di):s64[3] w=+0(%di):string[2] b=%di:b4@8/32 q=+0(%di):u16[5] c=+0(%di):char[3] h=+0(%di):x8[2]",
		"r:e f r=$retval:s64 t=+0($retval):string b=$retval:b3@1/8", "p:stacked f n=%di:s32", "r:stacked_return f",
	} {
		d, err := event.Parse(def)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(d.Name, "stacked") {
			d.Stack = 3
		}
		at := fetch.PointEntry
		if d.Kind == event.Return {
			at = fetch.PointReturn
		}
		p, err := fetch.Compile(d, testEnv{}, at)
		if err != nil {
			t.Fatal(err)
		}
		ev := &hit.Event{Group: "g", Name: d.Name, Return: d.Kind == event.Return, Addr: 0x1010, Prog: p, ArgsOff: 16}
		for k := range 3 {
			h := &hit.Hit{Event: ev, Nanos: uint64(2345678901999 + i*1000000 + k*100000000), CPU: k, TID: 700 + k, Caller: 0x7000 + uint64(k)*0x1000, Rec: record(p, k)}
			if err := r.Hit(h); err != nil {
				t.Fatal(err)
			}
			hits++
			if k > 0 && d.Stack > 0 {
				hits += 2 + k // the stack's lines: of an entry one more
				if d.Kind == event.Return {
					hits--
				}
			}
		}
	}
	if err := r.Close(4); err != nil {
		t.Fatal(err)
	}
	return path, hits
}

// report prints a file.
func report(f *File) (string, error) {
	out := []byte("cpus=4\n")
	err := f.Each(func(r *Record) error {
		out = f.AppendReport(out, r)
		return nil
	})
	return string(out), err
}

// TestReport compares what is printed of a file with what trace-cmd prints of it.
func TestReport(t *testing.T) {
	path, hits := write(t)
	want, err := exec.Command("trace-cmd", "report", "-i", path).CombinedOutput()
	if err != nil {
		t.Fatalf("install trace-cmd, as ./test does: %v: %s", err, want)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := report(f)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(got, "\n") - 1; n != hits {
		t.Errorf("%d lines of %d hits", n, hits)
	}
	for _, s := range []string{
		"(main.(*T[go.shape.int]).serve+0x10) n=4161 m=65 x=0x1041 w=0x1041 c='A' y=main.(*T[go.shape.int]).serve+0x41", `w={"he"lo","he"lo"}`, "(read+0x0 <- main.(*T[go.shape.int]).serve) r=4096",
		"kernel_stack:         <stack trace >\n=> main.(*T[go.shape.int]).serve (1010)\n=> read (7010)\n=> main.(*T[go.shape.int]).serve (1100)\n",
	} {
		if !strings.Contains(got, s) {
			t.Errorf("no %s in\n%s", s, got)
		}
	}
}

// FuzzOpen reads files of any bytes.
func FuzzOpen(f *testing.F) {
	f.Add([]byte(magic+version+"\x00\x08\x00\x10\x00\x00"), -1, byte(0))
	f.Fuzz(func(t *testing.T, b []byte, at int, to byte) {
		path := filepath.Join(t.TempDir(), "f")
		if at >= 0 { // a byte of a file that is right is another
			path, _ = write(t)
			var err error
			if b, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
			b[at%len(b)] = to
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Open(path)
		if err != nil {
			if !errors.Is(err, ErrFile) {
				t.Fatal(err)
			}
			return
		}
		defer r.Close()
		_, _ = report(r) // damage of pages is an error
	})
}
