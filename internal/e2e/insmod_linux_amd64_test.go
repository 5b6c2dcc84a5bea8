package e2e

import (
	"errors"
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

	"kprobes.dev/kprobes/internal/kmod/documents"
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
	m := regexp.MustCompile(`(?m)^([0-9a-f]+) [TtBb] ` + name + `$`).FindSubmatch(out)
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

// TestInsmodAlias: a module that names a function which the program does not have is told which one is meant.
func TestInsmodAlias(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	fails(t, command(t, "insmod", "-p", pid(p), "testdata/alias.c"), 1, "symbol \"do_fork\" not found")
	for _, bad := range [][]string{{"--alias", "do_fork"}, {"--alias", "=main"}, {"--alias", "do_fork=a", "--alias", "do_fork=b"}} {
		fails(t, command(t, append(append([]string{"insmod", "-p", pid(p)}, bad...), "testdata/alias.c")...), 2, "--alias")
	}
	fails(t, command(t, "insmod", "-p", pid(p), "--alias", "do_fork=no_such_function", "testdata/alias.c"), 1, "symbol \"no_such_function\" not found")
	module(t, p, "insmod", "--alias", "do_fork=do_fchownat", "--alias", "unused=main", "testdata/alias.c")
	n := right(t, p, "chown 30")
	if out, want := module(t, p, "dmesg"), fmt.Sprintf("] at %016x\n", addressOf(t, p, "do_fchownat")); !strings.HasSuffix(out, want) {
		t.Errorf("no %q: %s", want, out)
	}
	if out, want := module(t, p, "rmmod", "alias"), fmt.Sprintf("] %d calls\n", n["chowns"]); !strings.HasSuffix(out, want) {
		t.Errorf("no %q: %s", want, out)
	}
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
}

// TestInsmodFails has starts that fail, and handlers that fault: the program goes on, and the log says why.
func TestInsmodFails(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	fails(t, command(t, "insmod", "-p", pid(p), "testdata/calls.c", "symbol=no_such_function"), 1, "module calls: its start has returned -2",
		"] calls: symbol \"no_such_function\" not found\n", "] calls: register_kprobe: -2")
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

// TestInsmodBesideTrace loads and removes modules while another command traces the same function: each has its own lines, also when the first module has gone.
func TestInsmodBesideTrace(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	s := trace(t, p.PID, "p:a do_fchownat")
	lines := 0
	for range 3 {
		module(t, p, "insmod", "testdata/calls.c")
		right(t, p, "chown 10")
		lines += 10
		if got := strings.Count(module(t, p, "dmesg"), ": call "); got != lines {
			t.Errorf("%d lines of %d calls", got, lines)
		}
		module(t, p, "rmmod", "calls")
	}
	n := right(t, p, "chown 5")
	r := s.end()
	r.counted(t, "a", n["chowns"], "jump")
	r.whole(t)
}

// TestInsmodLoops has a handler not end: it is ended, the program goes on, and the log says why. So it is where the module is removed meanwhile.
func TestInsmodLoops(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	module(t, p, "insmod", "testdata/calls.c", "loop=3")
	right(t, p, "chown 20")
	within(t, "the loop is told", func() bool {
		return strings.Contains(module(t, p, "dmesg"), "calls: a handler that does not end of the probe at do_fchownat+0x0/")
	})
	right(t, p, "chown 20")
	if out := module(t, p, "rmmod", "calls"); !strings.HasSuffix(out, "] calls: 3 calls\n") {
		t.Errorf("rmmod: %s", out)
	}

	module(t, p, "insmod", "testdata/calls.c", "loop=1")
	p.Send("chown 1")
	within(t, "the program is in the handler", func() bool { return strings.Contains(module(t, p, "dmesg"), ": call 1 ") })
	module(t, p, "rmmod", "calls")
	p.Line()
	right(t, p, "chown 5")
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
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
	for _, cc := range compilers {
		cmd := command(t, "insmod", "-p", pid(p), "testdata/all.c")
		cmd.Env = append(os.Environ(), "CC="+cc)
		if o := run(t, cmd); o.code != 0 || o.stderr != "" {
			t.Fatalf("%s: %v", cc, o)
		}
		n := right(t, p, "count")
		m := right(t, p, "go 5000")
		if out, want := module(t, p, "rmmod", "all"), allTells(n, m); !strings.HasSuffix(out, want) || m["f_six"]-n["f_six"] != 4*5000 {
			t.Errorf("%s: %s, want %s", cc, out, want)
		}
	}
	right(t, p, "go 100")
}

// TestInsmodGo has a module count and check calls of a Go program's function by four goroutines, while the collector runs and stacks move.
func TestInsmodGo(t *testing.T) {
	t.Parallel()
	p := program(t, "gowork", "4")
	module(t, p, "insmod", "testdata/goints.c")
	n := right(t, p, "count")["main.Ints"]
	for range 3 {
		right(t, p, "go 1500")
		p.Counts("gc")
	}
	n = right(t, p, "count")["main.Ints"] - n
	if out, want := module(t, p, "rmmod", "goints"), fmt.Sprintf("calls=%d returned=%d wrong=0 missed=0\n", n, n); !strings.HasSuffix(out, want) || n == 0 {
		t.Errorf("%s, want %s", out, want)
	}
	right(t, p, "go 100")
	if left := ours(t, p); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestInsmodDocuments loads the modules of Linux's Kprobes documentation, as they are printed: the lines that they write are as many as the program counts
// calls, with its arguments and addresses.
func TestInsmodDocuments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range documents.Names {
		text, err := documents.Module("../..", name)
		if errors.Is(err, documents.ErrNone) {
			t.Skip("the documents are not here: TestInsmodKinds has modules of this project's own")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".c"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		program string
		flags   []string
		callers []string
	}{{"forkopen", nil, []string{"do_fork", "sys_clone", "main"}}, {"goforks", []string{"CGO_ENABLED=1"}, []string{"do_fork", "sys_clone"}}} {
		t.Run(c.program, func(t *testing.T) {
			insertDocuments(t, testprog.Start(t, testprog.Build(t, c.program, c.flags...)), dir, c.callers)
		})
	}
}

// insertDocuments loads the modules in a directory into a program that has the functions which they probe.
func insertDocuments(t *testing.T, p *testprog.Proc, dir string, callers []string) {
	count := func(out, pattern string) int {
		return len(regexp.MustCompile(`(?m)^\[ *\d+\.\d{6}\] `+pattern+`$`).FindAllString(out, -1))
	}
	expect := func(what, out, pattern string, want uint64) {
		t.Helper()
		if n := count(out, pattern); uint64(n) != want {
			t.Errorf("%s: %d lines %s, want %d: %s", what, n, pattern, want, out)
		}
	}
	fork, open := addressOf(t, p, "do_fork"), addressOf(t, p, "sys_open")

	module(t, p, "insmod", filepath.Join(dir, "kprobe-example.c"))
	n := right(t, p, "fork 12")
	out := module(t, p, "dmesg")
	expect("kprobe", out, "kprobe registered", 1)
	expect("kprobe", out, `.*fault_handler.*`, 0) // it is called where a handler faults, and none does
	expect("kprobe", out, fmt.Sprintf(`pre_handler: p->addr=0x%016x, eip=[0-9a-f]+, eflags=0x[0-9a-f]+`, fork), n["forks"])
	expect("kprobe", out, fmt.Sprintf(`post_handler: p->addr=0x%016x, eflags=0x[0-9a-f]+`, fork), n["forks"])
	expect("kprobe", out, `Call Trace:`, n["forks"])
	for _, caller := range callers {
		expect("kprobe", out, ` `+caller+`\+0x[0-9a-f]+/0x[0-9a-f]+`, n["forks"])
	}
	expect("kprobe", module(t, p, "rmmod", "kprobe-example"), "kprobe unregistered", 1)

	module(t, p, "insmod", filepath.Join(dir, "jprobe-example.c"))
	m := right(t, p, "fork 9")
	out = module(t, p, "dmesg")
	expect("jprobe", out, fmt.Sprintf(`Planted jprobe at %016x, handler addr [0-9a-f]{16}`, fork), 1)
	for i := n["forks"] + 1; i <= m["forks"]; i++ {
		expect("jprobe", out, fmt.Sprintf(`jprobe: clone_flags=0x%x, stack_size=0x%x, regs=0x%016x`, i, 4096*i, addressOf(t, p, "forks")), 1)
	}
	expect("jprobe", module(t, p, "rmmod", "jprobe-example"), "jprobe unregistered", 1)

	module(t, p, "insmod", filepath.Join(dir, "kretprobe-example.c"))
	m = right(t, p, "open 20")
	out = module(t, p, "dmesg")
	expect("kretprobe", out, fmt.Sprintf("Planted return probe at %016x", open), 1)
	expect("kretprobe", out, "sys_open returns -2", m["failed"])
	out = module(t, p, "rmmod", "kretprobe-example")
	expect("kretprobe", out, "kretprobe unregistered", 1)
	expect("kretprobe", out, "Missed probing 0 instances of sys_open", 1)
	right(t, p, "fork 3")
}
