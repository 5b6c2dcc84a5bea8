package codescan

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// TestEnteredInstructions compares where the C library's functions are entered from elsewhere with what objdump says: at
// instructions only, and wherever a jump of another function leads.
func TestEnteredInstructions(t *testing.T) {
	libc := libcPath(t)
	s, m := load(t, libc)
	x := s.text(m.Image)
	starts, jumps := disassembled(t, libc)
	entered, wrong := map[uint64]bool{}, 0
	for _, f := range x.funcs {
		for _, to := range x.entered(f) {
			entered[to] = true
			if !starts[to] {
				wrong++
				t.Logf("%s+0x%x is no instruction", f.Name, to-f.Addr)
			}
		}
	}
	if wrong > 0 || len(entered) < 10 {
		t.Errorf("%d of %d places are no instructions", wrong, len(entered))
	}
	missed := 0
	for from, to := range jumps {
		f, off, ok := m.Image.At(to)
		if g, _, in := m.Image.At(from); !ok || off == 0 || f.Contains(from) || in && g == f || entered[to] {
			continue
		}
		missed++
		t.Errorf("the jump at 0x%x to %s+0x%x is not seen", from, f.Name, off)
	}
	t.Logf("%d places, %d jumps of objdump's, %d missed", len(entered), len(jumps), missed)
}

// libcPath is the file of the C library.
func libcPath(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("gcc", "-print-file-name=libc.so.6").Output()
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.EvalSymlinks(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// disassembled gives what objdump takes for the starts of instructions of a file, and for jumps: where each leads.
func disassembled(t *testing.T, path string) (starts map[uint64]bool, jumps map[uint64]uint64) {
	t.Helper()
	out, err := exec.Command("objdump", "-d", "--no-show-raw-insn", path).Output()
	if err != nil {
		t.Fatalf("objdump (Debian: binutils): %v", err)
	}
	starts, jumps = map[uint64]bool{}, map[uint64]uint64{}
	for line := range strings.Lines(string(out)) {
		at, rest, ok := strings.Cut(line, ":\t")
		addr, err := strconv.ParseUint(strings.TrimSpace(at), 16, 64)
		if !ok || err != nil {
			continue
		}
		starts[addr] = true
		w := strings.Fields(strings.TrimPrefix(rest, "bnd "))
		if len(w) >= 2 && w[0][0] == 'j' {
			if to, err := strconv.ParseUint(w[1], 16, 64); err == nil {
				jumps[addr] = to
			}
		}
	}
	return starts, jumps
}
