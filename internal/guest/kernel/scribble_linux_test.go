package kernel_test

import (
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// snapshot is memory as it was at one moment, more or less.
type snapshot []byte

func (s snapshot) Ranges() []interval.Range { return []interval.Range{{Start: 0, End: uint64(len(s))}} }

func (s snapshot) Bytes(pa uint64, n int) []byte {
	if n < 0 || pa > uint64(len(s)) || uint64(n) > uint64(len(s))-pa {
		return nil
	}
	return s[pa : pa+uint64(n) : pa+uint64(n)]
}

// TestScribble changes bytes of a copy of the guest's memory at random, most of them in the
// kernel's own structures, and has everything read: nothing panics or goes on for ever.
func TestScribble(t *testing.T) {
	g, k := booted(t)
	ram := snapshot(g.ram())
	targets := structures(t, k)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	found, places := 0, 0
	for round := range 40 {
		undo := map[uint64]byte{}
		for range 1 + rng.IntN(1<<(round%8)) {
			r := targets[rng.IntN(len(targets))]
			pa := r.Start + rng.Uint64N(r.End-r.Start)
			if _, done := undo[pa]; !done {
				undo[pa] = ram[pa]
			}
			ram[pa] = byte(rng.Uint32())
		}
		f, p := readAll(ram)
		found, places = found+f, places+p
		for pa, b := range undo {
			ram[pa] = b
		}
	}
	if f, p := readAll(ram); f != 1 || p != 1 {
		t.Errorf("the memory as it was can not be read: %d, %d", f, p)
	}
	t.Logf("of 40 damaged memories %d had a kernel, %d its tables", found, places)
}

// structures gives the physical ranges of what is read.
func structures(t *testing.T, k *kernel.Kernel) []interval.Range {
	t.Helper()
	var out []interval.Range
	add := func(va, n uint64) {
		if pa, left, _, ok := k.Translate(va); ok {
			out = append(out, interval.Range{Start: pa, End: pa + min(n, left)})
		}
	}
	for _, name := range []string{
		"modules", "kprobe_blacklist", "kprobe_table", "ftrace_pages_start", "init_task", "__per_cpu_offset", "vmemmap_base",
		"__start___ex_table", "__start___jump_table", "__start_static_call_sites", "__start___bug_table", "__start_BTF",
		"init_top_pgt", "level3_kernel_pgt", "level2_kernel_pgt", "smp_alt_modules", "linux_banner", "nr_threads",
	} {
		if va, ok := k.Addr(name); ok {
			add(va, 64)
			add(va, 4096)
		}
	}
	err := k.Tasks(func(x kernel.Task) bool {
		add(x.Addr, 4096)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	mods, err := k.Modules()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mods {
		add(m.Struct, 4096)
	}
	_, pa := k.Base()
	return append(out, interval.Range{Start: pa, End: pa + 32<<20})
}

// readAll finds a kernel and calls everything.
func readAll(ram snapshot) (found, places int) {
	k, err := kernel.Find(ram)
	if err != nil {
		return 0, 0
	}
	va, _ := k.Addr("vfs_read")
	if p, err := k.Places(); err == nil {
		places = 1
		p.FuncDenied(va, va+64)
		p.Kept(va, va+4096)
		p.Entries(va, va+4096)
		p.FtraceSite(va)
	}
	code := make([]byte, 4096)
	k.Recover(va, code)
	rsp := make([]uint64, k.CPUs())
	for cpu := range rsp {
		rsp[cpu] = k.PerCPU(cpu)
	}
	k.Saved(rsp, func(*kernel.Task, uint64) {})
	k.Check()
	k.Owns(uint64(len(ram)) / 2)
	k.Free()
	k.Arch()
	if clock, err := k.Clock(); err == nil {
		clock(1e12, 0)
	}
	space := symbol.NewSpace()
	if im, err := k.Image(); err == nil {
		space.Add(im, 0, "")
	}
	mods, _ := k.Modules()
	for _, m := range mods {
		if im, err := m.Image(); err == nil {
			space.Add(im, 0, "")
		}
	}
	space.SymbolAt(va)
	return 1, places
}

// BenchmarkFind is the time from nothing to all symbols, of 256 MB.
func BenchmarkFind(b *testing.B) {
	g, _ := booted(b)
	for b.Loop() {
		if _, err := kernel.Find(g); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTasks is a walk over all threads.
func BenchmarkTasks(b *testing.B) {
	_, k := booted(b)
	n := 0
	if err := k.Tasks(func(kernel.Task) bool { return false }); err != nil { // reads the types
		b.Fatal(err)
	}
	for b.Loop() {
		n = 0
		if err := k.Tasks(func(kernel.Task) bool { n++; return true }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n), "threads")
}

// BenchmarkSaved reads every stack.
func BenchmarkSaved(b *testing.B) {
	_, k := booted(b)
	rsp := make([]uint64, k.CPUs())
	if err := k.Tasks(func(kernel.Task) bool { return false }); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := k.Saved(rsp, func(*kernel.Task, uint64) {}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPlaces reads all tables of the kernel and its modules.
func BenchmarkPlaces(b *testing.B) {
	g, _ := booted(b)
	for b.Loop() {
		b.StopTimer()
		k, err := kernel.Find(g)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := k.Types(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := k.Places(); err != nil {
			b.Fatal(err)
		}
	}
}
