package symbol

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/interval"
)

// redis is Debian's stripped program.
const redis = "/usr/bin/redis-server"

// readelfFDEs lists the pc ranges that readelf finds in .eh_frame.
func readelfFDEs(t *testing.T, path string) []interval.Range {
	t.Helper()
	var out []interval.Range
	for line := range strings.Lines(run(t, "readelf", "-W", "-wNF", path)) {
		_, pc, ok := strings.Cut(line, "pc=")
		if !ok || !strings.Contains(line, " FDE ") {
			continue
		}
		lo, hi, _ := strings.Cut(strings.TrimSpace(pc), "..")
		out = append(out, interval.Range{Start: hexNum(t, lo), End: hexNum(t, hi)})
	}
	slices.SortFunc(out, func(a, b interval.Range) int { return cmpU64(a.Start, b.Start) })
	return out
}

// TestFDEs compares the frame descriptions of real programs with readelf's.
func TestFDEs(t *testing.T) {
	for _, path := range []string{redis, "/usr/bin/gdb", "/lib/x86_64-linux-gnu/libc.so.6", buildC(t, "static"), buildC(t, "clang")} {
		im := open(t, path, noDebug)
		want := readelfFDEs(t, path)
		fdes := im.table().fdes
		if len(fdes) != len(want) || len(want) == 0 {
			t.Errorf("%s: %d FDEs, readelf has %d", path, len(fdes), len(want))
			continue
		}
		for i, d := range fdes {
			if d.start != want[i].Start || d.end != want[i].End {
				t.Fatalf("%s: FDE 0x%x-0x%x, readelf has 0x%x-0x%x", path, d.start, d.end, want[i].Start, want[i].End)
			}
		}
	}
}

// TestStripped compares the functions of Debian's stripped programs with the frame descriptions that
// readelf finds: all of them are listed, but cold parts and the stubs of the PLT.
func TestStripped(t *testing.T) {
	for _, path := range []string{redis, "/usr/bin/sleep", "/usr/bin/git", "/usr/bin/sqlite3", "/usr/bin/bash"} {
		im := open(t, path, noDebug)
		listed := map[uint64]*Func{}
		for _, fn := range im.Glob("*") {
			listed[fn.Addr] = fn
		}
		plt := im.elf.pltSections()
		inPLT := func(a uint64) bool {
			return slices.ContainsFunc(plt, func(s section) bool { return a-s.addr < s.size })
		}
		found, cold := 0, 0
		for _, d := range readelfFDEs(t, path) {
			fn, _, ok := im.At(d.Start)
			switch {
			case inPLT(d.Start):
			case listed[d.Start] != nil:
				found++
				if fn.Name == "" && fn.End() != d.End {
					t.Errorf("%s: %s ends at 0x%x, readelf's frame at 0x%x", path, fn, fn.End(), d.End)
				}
			case ok && fn.Addr == d.Start && fn.Cold:
				cold++
			default:
				t.Errorf("%s: no function is listed at 0x%x", path, d.Start)
			}
		}
		t.Logf("%s: %d functions by their frames, %d cold parts, %d listed", path, found, cold, len(listed))
		if found < 70 || cold > found/4 {
			t.Errorf("%s: %d functions by their frames, %d cold parts", path, found, cold)
		}
	}
}

// TestStartsAreInstructions disassembles C libraries: where a frame description alone tells of a
// function, an instruction begins. That of a signal's return begins one byte before its code.
func TestStartsAreInstructions(t *testing.T) {
	for _, path := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"} {
		im := open(t, path, noDebug)
		begins := map[uint64]bool{}
		for line := range strings.Lines(run(t, "objdump", "-d", "-z", "--no-show-raw-insn", path)) {
			if a, _, ok := strings.Cut(strings.TrimSpace(line), ":\t"); ok {
				begins[hexNum(t, a)] = true
			}
		}
		signals, checked := 0, 0
		for _, d := range im.table().fdes {
			if !d.signal {
				continue
			}
			signals++
			if fn, _, ok := im.At(d.start); ok {
				t.Errorf("%s: %s is at 0x%x, a signal's frame", path, fn, d.start)
			}
		}
		for _, fn := range im.Funcs() {
			if fn.Source != SourceEHFrame {
				continue
			}
			if checked++; !begins[fn.Addr] {
				t.Errorf("%s: no instruction begins at %s", path, fn)
			}
		}
		if signals == 0 || checked < 50 {
			t.Errorf("%s: %d frames of signals, %d functions by their frames", path, signals, checked)
		}
	}
}

// TestBoundsAgree compares the bounds that .eh_frame gives to Debian's stripped
// redis-server with the sizes in its .dynsym.
func TestBoundsAgree(t *testing.T) {
	im := open(t, redis, noDebug)
	same, checked := 0, 0
	for _, fn := range im.Funcs() {
		if fn.SizeFrom != SourceDynsym {
			continue
		}
		checked++
		if d, ok := im.table().fdeAt(fn.Addr); ok && d.start == fn.Addr && d.end == fn.End() {
			same++
		} else {
			t.Logf("%s 0x%x-0x%x, FDE 0x%x-0x%x", fn, fn.Addr, fn.End(), d.start, d.end)
		}
	}
	if checked < 3000 || checked != same {
		t.Errorf("%d of %d functions have the same bounds", same, checked)
	}
	if one(t, im, "lookupKey").Size == 0 {
		t.Error("lookupKey has no size")
	}
}

// TestColdPartsByRules compares what the first unwinding rules say of a piece of code
// with the names of functions: no function is taken for a cold part, and most cold parts
// are known without their names.
func TestColdPartsByRules(t *testing.T) {
	im := open(t, build(t, "g++", throwSource, "-O2", "-static"), noDebug)
	cold, known := 0, 0
	for _, fn := range im.Funcs() {
		d, ok := im.table().fdeAt(fn.Addr)
		if fn.Name == "" || fn.PLT || !ok || d.start != fn.Addr {
			continue
		}
		switch {
		case !fn.Cold && d.inner:
			t.Errorf("%s at 0x%x is taken for a cold part", fn, fn.Addr)
		case fn.Cold && d.inner:
			known++
			fallthrough
		case fn.Cold:
			cold++
		}
	}
	if cold < 20 || known < cold*8/10 {
		t.Errorf("%d of %d cold parts are known", known, cold)
	}
}

// sstrip takes the section headers off a copy of a program.
func sstrip(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[40:48]) // e_shoff
	clear(b[58:64]) // e_shentsize, e_shnum, e_shstrndx
	out := filepath.Join(t.TempDir(), filepath.Base(path))
	if err := os.WriteFile(out, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestNoSectionHeaders finds in redis-server without section headers what it finds with
// them, names of stubs aside.
func TestNoSectionHeaders(t *testing.T) {
	whole, bare := open(t, redis, noDebug), open(t, sstrip(t, redis), noDebug)
	for _, fn := range whole.Funcs() {
		if fn.PLT {
			continue
		}
		got, off, ok := bare.At(fn.Addr)
		if !ok || off != 0 || got.Name != fn.Name || got.Size != fn.Size || got.Cold != fn.Cold {
			t.Fatalf("%+v is %+v", fn, got)
		}
	}
	if bare.BuildID() != whole.BuildID() || bare.BuildID() == "" || bare.Interp() == "" {
		t.Errorf("build-id %q, %q; interpreter %q", bare.BuildID(), whole.BuildID(), bare.Interp())
	}
	compareDynsym(t, "/lib/x86_64-linux-gnu/libc.so.6", "malloc")
	for _, style := range []string{"gnu", "sysv"} {
		compareDynsym(t, build(t, "gcc", libSource, "-O1", "-shared", "-fPIC", "-Wl,--hash-style="+style), "lib_work")
	}
	compareDynsym(t, build(t, "gcc", "static int f(void) { return 3; } int (*p)(void) = f;", "-shared", "-fPIC", "-fvisibility=hidden", "-nostdlib", "-Wl,--hash-style=gnu"), "")
}

// compareDynsym checks the count that a hash table gives, and one function.
func compareDynsym(t *testing.T, path, name string) {
	t.Helper()
	whole, bare := open(t, path, noDebug), open(t, sstrip(t, path), noDebug)
	a, _, err1 := whole.elf.sectionSpan(11) // SHT_DYNSYM
	b, _, err2 := bare.elf.dynamicSpan(&bare.dyn)
	if err1 != nil || err2 != nil || a.symOff != b.symOff || a.symSize != b.symSize || a.strOff != b.strOff {
		t.Errorf("%s: %+v %v, by sections %+v %v", path, b, err2, a, err1)
	}
	if name != "" && one(t, bare, name).Addr != one(t, whole, name).Addr {
		t.Errorf("%s: %s at 0x%x", path, name, one(t, bare, name).Addr)
	}
}

const throwSource = `
#include <stdexcept>
#include <string>
#include <cstdio>
struct Guard { int &n; ~Guard() { n--; } };
int depth;
extern "C" __attribute__((noinline)) void may_throw(int x) {
	if (x & 1) throw std::runtime_error("odd " + std::to_string(x));
	if (x & 2) throw x;
}
extern "C" __attribute__((noinline)) int catcher(int x) {
	Guard g{depth};
	depth++;
	try { may_throw(x); may_throw(x >> 1); }
	catch (const std::exception &e) { std::puts(e.what()); return 1; }
	catch (int v) { may_throw(v >> 2); return v; }
	std::string s(x, 'a');
	may_throw(x >> 3);
	return s.size();
}
int main(int argc, char **) { try { return catcher(argc); } catch (...) { return 9; } }
`

// TestLandingPads compares landing pads with those that the compiler wrote: its assembly
// is changed so that the labels in the call-site tables become symbols.
func TestLandingPads(t *testing.T) {
	for _, tool := range []string{"g++", "clang++"} {
		for _, flags := range [][]string{{"-O2"}, {"-O0"}, {"-O2", "-no-pie"}} {
			t.Run(fmt.Sprint(tool, flags), func(t *testing.T) { comparePads(t, tool, flags) })
		}
	}
}

// padLine matches the landing pad of a call site in the assembly of gcc and clang.
var padLine = regexp.MustCompile(`\.uleb128 +L_([A-Za-z0-9_]+)-L_[A-Za-z0-9_]+\s*#?.*`)

func comparePads(t *testing.T, tool string, flags []string) {
	dir := t.TempDir()
	write(t, dir+"/p.cc", throwSource)
	run(t, tool, append([]string{"-S", "-o", dir + "/p.s", dir + "/p.cc"}, flags...)...)
	asm, err := os.ReadFile(dir + "/p.s")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(asm), ".L", "L_")
	write(t, dir+"/p.s", text)
	run(t, tool, append([]string{"-o", dir + "/p", dir + "/p.s"}, flags...)...)
	labels := map[string]uint64{}
	for _, s := range nm(t, dir+"/p") {
		labels[s.name] = s.addr
	}
	want := map[uint64]bool{}
	for _, pad := range padLabels(text) {
		a, ok := labels["L_"+pad]
		if !ok {
			t.Fatalf("no label %q", pad)
		}
		want[a] = true
	}
	im := open(t, objcopy(t, dir+"/p", ".plain", "-w", "--strip-symbol=L_*"), noDebug)
	got := map[uint64]bool{}
	for _, fn := range im.Funcs() {
		if fn.Cold && fn.PartOf != "" {
			continue
		}
		pads, err := im.LandingPads(fn)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pads {
			got[p] = true
		}
	}
	if len(want) < 4 || fmt.Sprint(want) != fmt.Sprint(got) {
		t.Errorf("landing pads %v, the assembly has %v", got, want)
	}
	if pads, _ := im.LandingPads(one(t, im, "catcher")); len(pads) < 3 {
		t.Errorf("catcher has landing pads %x", pads)
	}
}

// padLabels gives the third field of each call site: start, length, landing pad, action.
func padLabels(asm string) []string {
	var out []string
	field := 0
	inTable := false
	for line := range strings.Lines(asm) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, "L_LSDACSB") && strings.HasSuffix(line, ":"), strings.Contains(line, "L_cst_begin") && strings.HasSuffix(line, ":"):
			inTable, field = true, 0
		case strings.Contains(line, "L_LSDACSE") && strings.HasSuffix(line, ":"), strings.Contains(line, "L_cst_end") && strings.HasSuffix(line, ":"):
			inTable = false
		case inTable && (strings.HasPrefix(line, ".uleb128") || strings.HasPrefix(line, ".byte")):
			if p := padLine.FindStringSubmatch(line); p != nil && field%4 == 2 {
				out = append(out, p[1])
			}
			field++
		}
	}
	return out
}

// TestEncoded reads every pointer encoding.
func TestEncoded(t *testing.T) {
	neg := []byte{0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	b := ehBases{vaddr: 0x1000, text: 0x20, data: 0x300}
	for _, c := range []struct {
		name string
		enc  byte
		want uint64
		ok   bool
	}{
		{"absptr", peAbsptr, 0xfffffffffffffff0, true},
		{"udata2", peUdata2, 0xfff0, true},
		{"sdata2 pcrel", peSdata2 | pePcrel, 0xff0, true},
		{"udata4", peUdata4, 0xfffffff0, true},
		{"sdata4 pcrel", peSdata4 | pePcrel, 0xff0, true},
		{"sdata8 datarel", peSdata8 | peDatarel, 0x2f0, true},
		{"sdata4 textrel", peSdata4 | peTextrel, 0x10, true},
		{"aligned", peAligned, 0xfffffffffffffff0, true},
		{"funcrel", peFuncrel | peUdata4, 0, false},
		{"indirect", peIndirect | pePcrel | peSdata4, 0, false},
		{"omit", peOmit, 0, false},
		{"unknown form", 0x07, 0, false},
	} {
		c2 := &cursor{b: neg}
		got, ok := c2.encoded(c.enc, b)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: 0x%x, %v, want 0x%x, %v", c.name, got, ok, c.want, c.ok)
		}
	}
	if v, ok := (&cursor{b: []byte{0x80, 0x7f}}).encoded(peSleb, b); !ok || v != 0xffffffffffffff80 {
		t.Errorf("sleb: 0x%x, %v", v, ok)
	}
	if _, ok := (&cursor{b: []byte{1, 2}}).encoded(peUdata4, b); ok {
		t.Error("a cut-off pointer is read")
	}
}
