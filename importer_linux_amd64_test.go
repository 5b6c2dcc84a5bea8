package kprobes_test

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// A program that registers one Kprobe on itself stays small: it gets what probes its own Go code, and
// no tracer of other processes, no network and no decompressor of what only C libraries have.
func TestImporterStaysSmall(t *testing.T) {
	const most, growth = 100, 3_500_000 // packages; bytes of a stripped program
	out, err := exec.Command("go", "list", "-deps", "-tags", "probed", "./internal/testprog/goimport").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	t.Logf("%d packages", len(deps))
	if len(deps) > most {
		t.Errorf("%d packages, at most %d: %q", len(deps), most, deps)
	}
	for _, p := range []string{"kprobes.dev/kprobes/target/process", "os/exec", "net", "regexp", "crypto", "math/big", "github.com/ulikunitz/xz/lzma"} {
		if slices.Contains(deps, p) {
			t.Errorf("it imports %s", p)
		}
	}
	size := func(flags ...string) int64 {
		st, err := os.Stat(testprog.BuildLive(t, "goimport", append(flags, "-ldflags=-s -w")...))
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	plain, probed := size(), size("-tags=probed")
	t.Logf("%d bytes, %d without a probe", probed, plain)
	if probed-plain > growth {
		t.Errorf("%d bytes more than the %d without a probe, at most %d", probed-plain, plain, growth)
	}
}

// Nothing that an importing program uses asks a type for its methods by number: the linker would
// keep the methods of all types of the program, whether they are called or not.
func TestImporterKeepsNoMethods(t *testing.T) {
	cmd := exec.Command("go", "build", "-tags=probed", "-ldflags=-dumpdep", "-o", os.DevNull, "./internal/testprog/goimport")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		n++
		if from, _, _ := strings.Cut(line, " -> "); strings.HasSuffix(from, "<ReflectMethod>") {
			t.Errorf("%s", line)
		}
	}
	if n < 1000 {
		t.Errorf("%d lines of what needs what: the linker told nothing", n)
	}
}

// What an importing program pays before its first call is next to nothing: tables are made when they
// are needed.
func TestImporterStartsNothing(t *testing.T) {
	const most = 3 << 10 // bytes
	cmd := exec.Command(testprog.BuildLive(t, "goimport", "-tags=probed"))
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace strings.Builder
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, trace.String())
	}
	bytes, packages := 0, 0
	for line := range strings.Lines(trace.String()) {
		// init internal/bytealg @0.008 ms, 0 ms clock, 0 bytes, 0 allocs (package runtime, Environment Variables)
		f := strings.Fields(line)
		if len(f) != 11 || f[0] != "init" {
			continue
		}
		n, err := strconv.Atoi(f[7])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		packages++
		if strings.HasPrefix(f[1], "kprobes.dev/") {
			t.Logf("%s", line)
			bytes += n
		}
	}
	if packages < 10 {
		t.Fatalf("%d packages: the runtime told nothing\n%s", packages, trace.String())
	}
	if bytes > most {
		t.Errorf("%d bytes are allocated before main, at most %d", bytes, most)
	}
}
