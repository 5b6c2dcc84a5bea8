package oracle

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
	"kprobes.dev/kprobes/trace"
)

const tracefs = "/sys/kernel/tracing"

// all is set where the whole corpus is put to the kernel: else one case of twenty is.
var all = os.Getenv("KPROBES_E2E_LONG") != ""

// TestOracle puts the corpus to a guest's kernel and to us.
func TestOracle(t *testing.T) {
	g := boot(t)
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	table, err := ReadTable("testdata/differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases, err := ReadCorpus(addresses(t, g), without(files, "testdata/differences.txt")...)
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) < 300 {
		t.Errorf("%d cases, want 300", len(cases))
	}
	if !all {
		n := 0
		cases = slices.DeleteFunc(cases, func(*Case) bool { n++; return n%20 != 1 })
	}
	pair := &Pair{Kernel: &Kernel{Files: g, Root: tracefs}, Ours: attach(t, g), Hit: func(command string) error {
		f := strings.Fields(command)
		f[0] = "/bin/" + f[0]
		r, err := g.Run(f...)
		if err == nil && r.Status != 0 {
			err = errors.New(command + ": " + r.Stderr)
		}
		return err
	}}
	r, err := pair.Run(cases)
	judge(t, r, table)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range g.Trouble() {
		t.Errorf("the guest's kernel says: %s", line)
	}
}

// judge fails for differences that nobody explains, and for explanations of none.
func judge(t *testing.T, r *Result, table Table) {
	t.Helper()
	explained := 0
	for _, d := range r.Differences {
		if table.Explain(d) != nil {
			explained++
			continue
		}
		t.Error(d)
	}
	for _, row := range table.Unused() {
		if !all {
			break
		}
		t.Errorf("differences.txt:%d: explains nothing: %s | %s", row.Line, row.Field, row.Step)
	}
	for _, row := range table.Reasons() {
		t.Logf("%4d: %s", row.Uses, row.Reason)
	}
	t.Logf("%d definitions and other steps in %d cases: %d accepted, %d refused by the kernel; %d format files, %d trace lines; %d steps equal in all; %d differences explained, of %d",
		r.Steps, r.Cases, r.Accepted, r.Refused, r.Formats, r.Lines, r.Equal, explained, len(r.Differences))
}

// boot boots a guest with a module loaded. Its kernel leaves its probes as they are: it makes
// jumps of breakpoints some time after they were enabled, and then says other flags.
func boot(t *testing.T) *testguest.Guest {
	t.Helper()
	g := testguest.Boot(t, nil)
	g.Shell("insmod " + g.Module("drivers/net/dummy") + " && echo 0 > /proc/sys/debug/kprobes-optimization")
	return g
}

// attach makes our side of a guest.
func attach(t *testing.T, g *testguest.Guest) *Ours {
	t.Helper()
	m, err := qemu.Open(g.Spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	tg, err := guest.Attach(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := trace.New(core, nil)
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), core.Close(nil)); err != nil {
			t.Errorf("end of our side: %v", err)
		}
	})
	return &Ours{Instance: in}
}

// addresses finds symbols as the guest's own kallsyms has them.
func addresses(t *testing.T, g *testguest.Guest) Symbols {
	t.Helper()
	text, err := g.Read("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]uint64{}
	var all []uint64
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 {
			at, _ := strconv.ParseUint(f[0], 16, 64) // 0 is no address
			all = append(all, at)
			if of[f[2]] == 0 {
				of[f[2]] = at
			}
		}
	}
	slices.Sort(all)
	return func(name string) (at, next uint64) {
		at = of[name]
		if n, _ := slices.BinarySearch(all, at+1); n < len(all) {
			next = all[n]
		}
		return at, next
	}
}

func without(list []string, name string) (out []string) {
	for _, s := range list {
		if s != name {
			out = append(out, s)
		}
	}
	return out
}
