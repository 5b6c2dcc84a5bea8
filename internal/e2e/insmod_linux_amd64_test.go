package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// module runs a verb about a process's modules, and gives its output.
func module(t testing.TB, p *testprog.Proc, verb string, args ...string) string {
	t.Helper()
	o := run(t, command(t, append([]string{verb, "-p", pid(p)}, args...)...))
	if o.code != 0 || o.stderr != "" {
		t.Fatalf("%s %q: %v", verb, args, o)
	}
	return o.stdout
}

// addressOf is where a function stands in a process, as nm and the kernel's list of mappings tell.
func addressOf(t testing.TB, p *testprog.Proc, name string) uint64 {
	t.Helper()
	out, err := exec.Command("nm", p.Path).Output()
	if err != nil {
		t.Fatal(err, "(install binutils)")
	}
	m := regexp.MustCompile(`(?m)^([0-9a-f]+) [Tt] ` + name + `$`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("nm has no %s", name)
	}
	at, err := strconv.ParseUint(string(m[1]), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	maps, err := procfs.MapsOf(fmt.Sprint("/proc/", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if m.Path == p.Path && m.Offset == 0 && at < 0x400000 { // it lies anywhere
			return m.Start + at
		}
	}
	return at
}

// ours are the mappings of a process that a kprobe has made.
func ours(t testing.TB, p *testprog.Proc) []string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^.*kprobes:.*$`).FindAllString(string(b), -1)
}

// TestInsmod has the command load a module of C into a program that runs: the log has a line for each call that the program counts, with its
// arguments, and the address where the function stands.
func TestInsmod(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	threads := tasks(t, p.PID)
	module(t, p, "insmod", "testdata/calls.c")
	if out := module(t, p, "lsmod"); !regexp.MustCompile(`(?m)^calls +\d+  0$`).MatchString(out) {
		t.Errorf("lsmod: %s", out)
	}
	fails(t, command(t, "insmod", "-p", pid(p), "testdata/calls.c"), 1, "module calls is loaded already")
	n := right(t, p, "chown 50")
	out := module(t, p, "dmesg")
	at := addressOf(t, p, "do_fchownat")
	if !strings.Contains(out, fmt.Sprintf("] calls: at %016x\n", at)) {
		t.Errorf("dmesg without the address 0x%x: %s", at, out)
	}
	for i := range n["chowns"] {
		want := fmt.Sprintf(`\] calls: call %d at do_fchownat\+0x0/0x[0-9a-f]+, dfd -?\d+, name /`, i+1)
		if !regexp.MustCompile(want).MatchString(out) {
			t.Fatalf("dmesg without %s: %s", want, out)
		}
	}
	if got := strings.Count(out, ": call "); uint64(got) != n["chowns"] || got < 50 {
		t.Errorf("%d lines of %d calls", got, n["chowns"])
	}
	if o := run(t, command(t, "list", "-p", pid(p))); !regexp.MustCompile(`(?m)^[0-9a-f]+  k  do_fchownat\+0x[04] `).MatchString(o.stdout) { // behind an endbr64
		t.Errorf("list: %v", o)
	}

	// Disabled and enabled as a whole, its handler runs again.
	module(t, p, "disable")
	right(t, p, "chown 5")
	module(t, p, "enable")
	right(t, p, "chown 7")
	if got := strings.Count(module(t, p, "dmesg"), ": call "); uint64(got) != n["chowns"]+7 {
		t.Errorf("%d lines, want %d", got, n["chowns"]+7)
	}

	if out := module(t, p, "rmmod", "calls"); !strings.HasSuffix(out, fmt.Sprintf("] calls: %d calls\n", n["chowns"]+7)) {
		t.Errorf("rmmod: %s", out)
	}
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	if now := tasks(t, p.PID); !slices.Equal(now, threads) {
		t.Errorf("threads %v, %v before", now, threads)
	}
	if out := module(t, p, "lsmod"); strings.Contains(out, "calls") {
		t.Errorf("lsmod: %s", out)
	}
	fails(t, command(t, "rmmod", "-p", pid(p), "calls"), 1, "has no modules")
	right(t, p, "chown 3")
}

// TestInsmodFails has starts that fail, and handlers that fault: the program goes on, and the log says why.
func TestInsmodFails(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	fails(t, command(t, "insmod", "-p", pid(p), "testdata/calls.c", "symbol=no_such_function"), 1, "module calls: its start has returned -2")
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	fails(t, command(t, "insmod", "-p", pid(p), "testdata/spin.c"), 1, "spin.c")
	no := filepath.Join(t.TempDir(), "no.c")
	if err := os.WriteFile(no, []byte("#include <linux/module.h>\nvoid no_such(void);\nstatic int __init start(void) { no_such(); return 0; }\nmodule_init(start);\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, command(t, "insmod", "-p", pid(p), no), 1, "module no: ", "unknown symbol no_such")
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	fails(t, command(t, "insmod", "-p", pid(p), "/no/such.o"), 1, "/no/such.o")
	module(t, p, "insmod", "testdata/calls.c", "fault=3")
	right(t, p, "chown 20")
	within(t, "the fault is told", func() bool {
		out := module(t, p, "dmesg")
		return strings.Contains(out, "calls: a fault in a handler of the probe at do_fchownat+0x0/") && strings.Count(out, ": call ") == 3
	})
	module(t, p, "rmmod", "calls")
	right(t, p, "chown 3")
}

// TestInsmodHolderKilled kills the process that holds the target for a module: its handlers run on, and kprobe detach takes all out.
func TestInsmodHolderKilled(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	threads := tasks(t, p.PID)
	module(t, p, "insmod", "testdata/calls.c")
	right(t, p, "chown 10")
	proc, err := process.OpenUnwaited(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	h, err := proc.Holder()
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	if err := unix.Kill(h.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	right(t, p, "chown 10")
	if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 {
		t.Fatal(o)
	}
	if left := ours(t, p); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	right(t, p, "chown 10")
	if now := tasks(t, p.PID); !slices.Equal(now, threads) {
		t.Errorf("threads %v, %v before", now, threads)
	}
	proc.Close()
}

// TestModinfo prints what a module tells of itself, of its source and of its object, which kprobe cc makes.
func TestModinfo(t *testing.T) {
	t.Parallel()
	object := filepath.Join(t.TempDir(), "calls.o")
	if o := run(t, command(t, "cc", "testdata/calls.c", "-o", object)); o.code != 0 || o.stderr != "" {
		t.Fatal(o)
	}
	for _, file := range []string{object, "testdata/calls.c"} {
		o := run(t, command(t, "modinfo", file))
		for _, want := range []string{"filename:       " + file, "license:        GPL", "description:    counts calls", "parm:           symbol:the function (charp)", "parm:           fault:int", "name:           calls"} {
			if !strings.Contains(o.stdout, want+"\n") {
				t.Errorf("modinfo %s without %q: %v", file, want, o)
			}
		}
	}
	p := program(t, "chowns")
	module(t, p, "insmod", object)
	right(t, p, "chown 2")
	if out := module(t, p, "rmmod", "calls"); !strings.Contains(out, "2 calls") {
		t.Errorf("rmmod: %s", out)
	}
}

// TestInsmodKinds has a module with kprobes, a kretprobe and jprobes count the calls of four threads, and look at arguments and results: all is as the
// program counts it.
func TestInsmodKinds(t *testing.T) {
	t.Parallel()
	p := program(t, "work", "4")
	for _, cc := range []string{"gcc", "clang"} {
		cmd := command(t, "insmod", "-p", pid(p), "testdata/all.c")
		cmd.Env = append(os.Environ(), "CC="+cc)
		if o := run(t, cmd); o.code != 0 || o.stderr != "" {
			t.Fatalf("%s: %v", cc, o)
		}
		n := right(t, p, "count")
		m := right(t, p, "go 5000")
		calls := func(name string) uint64 { return m[name] - n[name] }
		want := fmt.Sprintf("simple=%d behind=%d returned=%d six=%d big=%d wrong=0 missed=0\n", calls("f_lea")+calls("f_endbr"), calls("f_lea"), calls("f_push")*3/4, calls("f_six"), calls("f_big"))
		if out := module(t, p, "rmmod", "all"); !strings.HasSuffix(out, want) || calls("f_six") != 4*5000 {
			t.Errorf("%s: %s, want %s", cc, out, want)
		}
	}
	right(t, p, "go 100")
}
