package symbol

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func hexNum(t testing.TB, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

const cSource = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int counter = 7;
static int hidden_data[4] = {1, 2, 3};
__thread int per_thread = 3;
__attribute__((noinline)) int leaf(int x) { return x * 3 + counter; }
static __attribute__((noinline)) int local_fn(int x) { return leaf(x) ^ hidden_data[x & 3]; }
int alias_fn(int) __attribute__((alias("leaf")));
__attribute__((noinline,cold)) void fatal(const char *s, int x) { fprintf(stderr, "%s\n", s); counter = x; }
__attribute__((noinline)) int split(int x, int y) {
	int r = leaf(x) + local_fn(x);
	for (int i = 0; i < y; i++) {
		if (r > 1000 + i) { fatal("x", r); fatal("y", y); fatal("z", i); }
		r += leaf(r + i);
	}
	return r;
}
static int impl_a(int x) { return x + 1; }
static int (*choose(void))(int) { return impl_a; }
int chosen(int) __attribute__((ifunc("choose")));
asm(".text\n.globl bare_asm\nbare_asm:\n nop\n nop\n ret\n"
    ".globl typed_asm\n.type typed_asm,@function\ntyped_asm:\n.cfi_startproc\n nop\n ret\n.cfi_endproc\n .zero 5, 0xcc\n");
int main(int argc, char **argv) {
	char *p = malloc(argc); memset(p, 0, argc); per_thread++;
	return split(argc, 3) + chosen(argc) + alias_fn(1) + per_thread;
}
`

// cBuilds are the forms in which a C program comes.
var cBuilds = map[string][]string{
	"pie":        {"-O2", "-fPIE", "-pie"},
	"nopie":      {"-O2", "-no-pie"},
	"static":     {"-O2", "-static"},
	"static_pie": {"-O2", "-static-pie"},
	"clang":      {"-O2"},
	"ibt":        {"-O2", "-fcf-protection", "-Wl,-z,ibt,-z,ibtplt"},
}

func buildC(t testing.TB, form string) string {
	if form == "clang" {
		return build(t, "clang", cSource, cBuilds[form]...)
	}
	return build(t, "gcc", cSource, cBuilds[form]...)
}

// TestNames compares every function that nm prints, whatever the form of the program.
func TestNames(t *testing.T) {
	for form := range cBuilds {
		t.Run(form, func(t *testing.T) {
			path := buildC(t, form)
			compareNM(t, open(t, path, noDebug), nm(t, path))
		})
	}
}

// compareNM checks that each typed function of nm is found by address and by name, with
// its size.
func compareNM(t *testing.T, im *Image, syms []nmSym) {
	t.Helper()
	checked := 0
	for _, s := range syms {
		if !strings.ContainsRune("tTwWi", rune(s.kind)) || s.size == 0 || !im.InText(s.addr) {
			continue
		}
		name, _, _ := strings.Cut(s.name, "@")
		fn, off, ok := im.At(s.addr)
		if !ok || off != 0 {
			t.Errorf("At(0x%x) = %v+%d, %v: nm has %s there", s.addr, fn, off, ok, s.name)
			continue
		}
		if fn.Name != name && !slices.Contains(fn.Aliases, name) && !hasVersioned(fn.Aliases, name) {
			t.Errorf("0x%x is %q %q, nm has %q", s.addr, fn.Name, fn.Aliases, name)
		}
		if fn.Name == name && fn.Size != s.size {
			t.Errorf("%s has %d bytes, nm says %d", name, fn.Size, s.size)
		}
		lookupGives(t, im, name, s.addr)
		checked++
	}
	if checked < 10 {
		t.Errorf("only %d functions compared", checked)
	}
}

func hasVersioned(aliases []string, name string) bool {
	return slices.ContainsFunc(aliases, func(a string) bool { return strings.HasPrefix(a, name+"@") })
}

// lookupGives checks that a name leads to an address, alone or among candidates.
func lookupGives(t *testing.T, im *Image, name string, addr uint64) {
	t.Helper()
	fns, err := im.Lookup(name)
	var nf *NotFoundError
	if errors.As(err, &nf) {
		if nf.Reason == "" {
			t.Errorf("Lookup(%q): %v", name, err)
		}
		return
	}
	var amb *AmbiguousError
	if err != nil && !errors.As(err, &amb) {
		t.Errorf("Lookup(%q): %v", name, err)
	}
	if !slices.ContainsFunc(fns, func(f *Func) bool { return f.Addr == addr }) {
		t.Errorf("Lookup(%q) gives %v, not 0x%x", name, fns, addr)
	}
}

func TestFunctionFacts(t *testing.T) {
	im := open(t, buildC(t, "pie"), noDebug)
	leaf := one(t, im, "leaf")
	if alias := one(t, im, "alias_fn"); alias != leaf {
		t.Errorf("alias_fn is %v at 0x%x, leaf at 0x%x: one address must be one function", alias, alias.Addr, leaf.Addr)
	}
	if f := one(t, im, "local_fn"); !f.Local || f.File != "prog.c" || f.Lang != LangC || f.Source != SourceSymtab {
		t.Errorf("local_fn: %+v", f)
	}
	if f := one(t, im, "chosen"); !f.IFunc {
		t.Errorf("chosen: %+v, want an IFUNC", f)
	}
	if f := one(t, im, "typed_asm"); f.Size != 2 || f.SizeFrom != SourceEHFrame {
		t.Errorf("typed_asm: %+v, want 2 bytes by .eh_frame", f)
	}
	bare, typed := one(t, im, "bare_asm"), one(t, im, "typed_asm")
	if bare.End() != typed.Addr || bare.SizeFrom != SourceNext {
		t.Errorf("bare_asm: %+v, want bytes up to typed_asm 0x%x", bare, typed.Addr)
	}
	fn, off, ok := im.At(leaf.Addr + leaf.Size - 1)
	if !ok || fn != leaf || off != leaf.Size-1 {
		t.Errorf("At(last byte of leaf) = %v+%d, %v", fn, off, ok)
	}
}

func TestColdPartsAreNoCandidates(t *testing.T) {
	im := open(t, buildC(t, "pie"), noDebug)
	split := one(t, im, "split")
	parts := im.Parts(split)
	if len(parts) != 1 || parts[0].Name != "split.cold" || !parts[0].Cold || parts[0].PartOf != "split" {
		t.Fatalf("Parts(split) = %v", parts)
	}
	var nf *NotFoundError
	if _, err := im.Lookup("split.cold"); !errors.As(err, &nf) || !strings.Contains(nf.Reason, "split") || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Lookup(split.cold) = %v", err)
	}
	for _, f := range im.Glob("split*") {
		if f != split {
			t.Errorf("Glob(split*) gives %v", f)
		}
	}
	stripped := open(t, objcopy(t, buildC(t, "pie"), ".stripped", "--strip-all"), noDebug)
	if f, off, ok := stripped.At(parts[0].Addr); !ok || off != 0 || !f.Cold || f.Name != "" {
		t.Errorf("stripped: cold part is %+v, offset %d, %v", f, off, ok)
	}
	if f, _, _ := stripped.At(split.Addr); f == nil || f.Cold || f.Size != split.Size {
		t.Errorf("stripped: split is %+v, want %d bytes", f, split.Size)
	}
}

func TestData(t *testing.T) {
	path := buildC(t, "pie")
	im := open(t, path, noDebug)
	for _, s := range nm(t, path) {
		if s.name != "counter" && s.name != "hidden_data" && s.name != "leaf" && s.name != "_end" {
			continue
		}
		got, err := im.Data(s.name)
		if err != nil || got.Addr != s.addr || got.Size != s.size {
			t.Errorf("Data(%q) = %+v, %v, nm says 0x%x, %d bytes", s.name, got, err, s.addr, s.size)
		}
	}
	if _, err := im.Data("per_thread"); err == nil || !strings.Contains(err.Error(), "thread-local") {
		t.Errorf("Data(per_thread) = %v", err)
	}
	if _, err := im.Data("countre"); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), `"counter"`) {
		t.Errorf("Data(countre) = %v, want a hint at counter", err)
	}
}

// TestVersions compares the default versions of libc with readelf's list.
func TestVersions(t *testing.T) {
	const libc = "/lib/x86_64-linux-gnu/libc.so.6"
	im := open(t, libc, noDebug)
	checked, hidden := 0, 0
	for line := range strings.Lines(run(t, "readelf", "-W", "--dyn-syms", libc)) {
		p := strings.Fields(line)
		if len(p) < 8 || (p[3] != "FUNC" && p[3] != "IFUNC") || p[6] == "UND" {
			continue
		}
		addr, name := hexNum(t, p[1]), p[7]
		fns, err := im.Lookup(name)
		if err != nil || len(fns) != 1 || fns[0].Addr != addr {
			t.Fatalf("Lookup(%q) = %v, %v, want 0x%x", name, fns, err, addr)
		}
		base, _, versioned := strings.Cut(name, "@")
		if !versioned || strings.Contains(name, "@@") {
			fns, err = im.Lookup(base)
			if err != nil || fns[0].Addr != addr {
				t.Fatalf("Lookup(%q) = %v, %v, want the default version at 0x%x", base, fns, err, addr)
			}
		} else {
			hidden++
		}
		if (p[3] == "IFUNC") != fns[0].IFunc && !hasVersioned(fns[0].Aliases, base) {
			t.Errorf("%s: IFunc is %v", name, fns[0].IFunc)
		}
		checked++
	}
	if checked < 1000 || hidden < 10 {
		t.Errorf("only %d names, %d of hidden versions compared", checked, hidden)
	}
	if _, err := im.Lookup("malloc@NO_SUCH_1"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("unknown version: %v", err)
	}
}

func TestAmbiguous(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.c", "static __attribute__((noinline,used)) int twin(int x) { return x + 1; }\nint a(int x) { return twin(x); }")
	write(t, dir+"/b.c", "static __attribute__((noinline,used)) int twin(int x) { return x + 2; }\nint a(int); int main(int c, char **v) { return twin(c) + a(c); }")
	run(t, "gcc", "-O1", "-fno-ipa-cp", "-o", dir+"/prog", dir+"/a.c", dir+"/b.c")
	im := open(t, dir+"/prog", noDebug)
	fns, err := im.Lookup("twin")
	var amb *AmbiguousError
	if !errors.As(err, &amb) || len(fns) != 2 || len(amb.Candidates) != 2 {
		t.Fatalf("Lookup(twin) = %v, %v", fns, err)
	}
	if !errors.Is(err, syscall.EADDRNOTAVAIL) || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("%v: errno", err)
	}
	files := []string{amb.Candidates[0].File, amb.Candidates[1].File}
	slices.Sort(files)
	if !slices.Equal(files, []string{"a.c", "b.c"}) || amb.Candidates[0].Size == 0 {
		t.Errorf("candidates %+v", amb.Candidates)
	}
	for _, c := range amb.Candidates {
		if !strings.Contains(err.Error(), "0x"+strconv.FormatUint(c.Addr, 16)) {
			t.Errorf("%q does not name 0x%x", err, c.Addr)
		}
	}
}
