package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// compilers are those of modules.
var compilers = []string{"gcc", "clang"}

// compileBy has a compiler make an object of a module of testdata with flags of one's own: of kprobe's there are those alone that it needs to find the headers.
func compileBy(t testing.TB, cc, source, module string, flags ...string) string {
	t.Helper()
	o := run(t, command(t, "cc"))
	m := regexp.MustCompile(`-isystem (\S+)`).FindStringSubmatch(o.stdout)
	if m == nil {
		t.Fatalf("kprobe cc names no headers: %v", o)
	}
	out := filepath.Join(t.TempDir(), module+".o")
	args := slices.Concat([]string{"-nostdinc", "-isystem", m[1], "-DKBUILD_MODNAME=\"" + module + "\"", "-O2", "-c", "-o", out}, flags, []string{"testdata/" + source + ".c"})
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v (install gcc and clang)\n%s", cc, args, err, text)
	}
	return out
}

// hardened are flags that distributions give to all that they build.
var hardened = []string{"-O2", "-g", "-fstack-protector-strong", "-Wformat", "-Werror=format-security", "-fcf-protection", "-fstack-clash-protection"}

// flagSets are flags that modules are compiled with.
var flagSets = map[string][]string{
	"plain":  nil,
	"nopic":  {"-fno-pic"},
	"pic":    {"-fPIC"},
	"kernel": {"-fno-pic", "-mcmodel=kernel"},
	"debian": append([]string{"-D_FORTIFY_SOURCE=2"}, hardened...),
	"ubuntu": append([]string{"-D_FORTIFY_SOURCE=3", "-fPIE", "-fno-omit-frame-pointer"}, hardened...),
	"fedora": append([]string{"-D_FORTIFY_SOURCE=2", "-fno-pic", "-fexceptions", "-fasynchronous-unwind-tables", "-fno-omit-frame-pointer"}, hardened...),
	"fast":   {"-O3"},
}

// TestInsmodFlags loads the same module many times, as both compilers make it with the flags of distributions and for each code model: the
// kprobes, kretprobes and jprobes of each count the calls of four threads exactly.
func TestInsmodFlags(t *testing.T) {
	t.Parallel()
	p := program(t, "work", "4")
	var names []string
	for _, cc := range compilers {
		for set, flags := range flagSets {
			name := cc + "_" + set
			object := compileBy(t, cc, "all", name, flags...)
			if slices.Contains(flags, "-fstack-protector-strong") {
				out, err := exec.Command("objdump", "-dr", object).Output()
				if err != nil || !strings.Contains(string(out), "%fs:0x28") {
					t.Errorf("%s: no function checks its stack: %v (install binutils)", name, err)
				}
			}
			module(t, p, "insmod", object)
			names = append(names, name)
		}
	}
	n := right(t, p, "count")
	m := right(t, p, "go 2000")
	for i, name := range names {
		out := module(t, p, "rmmod", name)
		if i < len(names)-1 { // the log goes with the last one
			out = module(t, p, "dmesg")
		}
		if want := allTells(n, m); !strings.HasSuffix(out, want) {
			t.Errorf("%s: %s, want %s", name, out, want)
		}
	}
	right(t, p, "go 100")
}

// allTells is what the module all tells of the program work's calls between two counts.
func allTells(before, after map[string]uint64) string {
	calls := func(name string) uint64 { return after[name] - before[name] }
	return fmt.Sprintf("simple=%d behind=%d returned=%d six=%d big=%d wrong=0 missed=0\n", calls("f_lea")+calls("f_endbr"), calls("f_lea"), calls("f_push")*3/4, calls("f_six"), calls("f_big"))
}

// TestInsmodVectors loads a module whose code uses vector registers: where these are XMM registers alone, those of the program stay as they are, and also
// all wider ones; where it uses others it is refused, with the place and what to do.
func TestInsmodVectors(t *testing.T) {
	t.Parallel()
	p := program(t, "vector")
	for _, cc := range compilers {
		sse := compileBy(t, cc, "vectors", "vectors", "-O3")
		if out, err := exec.Command("objdump", "-d", sse).Output(); err != nil || !strings.Contains(string(out), "%xmm") {
			t.Fatalf("%s: the module has no vector instructions: %v (install binutils)", cc, err)
		}
		n := right(t, p, "count")["vec_leaf"]
		module(t, p, "insmod", sse)
		n = right(t, p, "go 5000")["vec_leaf"] - n
		if out, want := module(t, p, "rmmod", "vectors"), fmt.Sprintf("calls=%d wrong=0 missed=0\n", n); !strings.HasSuffix(out, want) || n != 5000 {
			t.Errorf("%s: %s, want %s", cc, out, want)
		}
		wide := compileBy(t, cc, "vectors", "vectors", "-O3", "-mavx2")
		fails(t, command(t, "insmod", "-p", pid(p), wide), 1, "module vectors: its code at .text+0x", "uses registers that no handler may change", "-mgeneral-regs-only")
	}
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	right(t, p, "go 100")
}

// TestInsmodLargeModel refuses objects of a code model that needs tables of the linker's, and says which flags to give; without -fPIC gcc needs none of them.
func TestInsmodLargeModel(t *testing.T) {
	t.Parallel()
	p := program(t, "work", "2")
	for _, cc := range compilers {
		object := compileBy(t, cc, "all", "all", "-fPIC", "-mcmodel=large")
		fails(t, command(t, "insmod", "-p", pid(p), object), 1, object+": ", "has a relocation of type ", "compile it with -fno-pic -mcmodel=kernel")
	}
	if left := ours(t, p); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	module(t, p, "insmod", compileBy(t, "gcc", "all", "all", "-fno-pic", "-mcmodel=large"))
	n := right(t, p, "count")
	m := right(t, p, "go 100")
	if out, want := module(t, p, "rmmod", "all"), allTells(n, m); !strings.HasSuffix(out, want) {
		t.Errorf("%s, want %s", out, want)
	}
}
