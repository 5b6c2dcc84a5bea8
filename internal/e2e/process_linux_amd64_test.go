package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
)

// pid is the flag for a process.
func pid(p *testprog.Proc) string { return strconv.Itoa(p.PID) }

// Threads that block SIGTRAP, or everything, or run handlers that do: jumps work and so do bad
// loads, breakpoints are refused.
func TestBlockedSignals(t *testing.T) {
	for _, mode := range []string{"mask", "all", "handler", "onstack", "ignore", "none"} {
		t.Run(mode, func(t *testing.T) {
			p := program(t, "sigmask", mode)
			old := right(t, p, "go 1") // its handlers are there
			before := stateOf(t, p.PID)
			if mode != "none" {
				fails(t, command(t, "trace", "-p", pid(p), "--tactic", "boost", "p:a masked_work"), 1, "SIGTRAP")
				before.same(t)
			}
			s := trace(t, p.PID, "p:a masked_work a=%di", "r:b masked_work ret=$retval a=$arg1 b=$arg2", "p:c masked_work bad=+0(%di):u64")
			n := right(t, p, "go 1000")
			r := s.end()
			for _, e := range []string{"a", "b", "c"} {
				r.counted(t, e, n["masked_work"]-old["masked_work"], "jump")
			}
			r.whole(t)
			for _, l := range r.of("b") {
				if l.number(t, "ret") != 11*l.number(t, "a")+l.number(t, "b") {
					t.Fatalf("result: %v", l)
				}
			}
		})
	}
}

// badCase is a pointer of the program badptr, and what is behind it.
type badCase struct {
	What, Kind string
	Value      uint64
}

// Bad pointers in arguments, also where the program blocks SIGSEGV and SIGBUS: it does so
// only after the attach.
func TestBadPointers(t *testing.T) {
	for _, mode := range []string{"open", "blocked"} {
		t.Run(mode, func(t *testing.T) { badPointers(t, mode) })
	}
}

func badPointers(t *testing.T, mode string) {
	// The compiler must not leave out what only probes read.
	p := testprog.Start(t, testprog.Build(t, "badptr", "-fno-tree-dse", "-fno-ipa-modref"), mode)
	var list struct{ Ptrs, Strs []badCase }
	p.Ask("list", &list)
	s := trace(t, p.PID, "p:ptr take_ptr v=+0(%di):u64 i=%si", "p:str take_str s=+0(%di):string i=%si",
		"p:pp take_pp s=+0(+0(%di)):string i=%si", "r:ret take_ptr v=+0($arg1):u64 i=$arg2")
	n := right(t, p, "go")
	r := s.end()
	for event, function := range map[string]string{"ptr": "take_ptr", "ret": "take_ptr", "str": "take_str", "pp": "take_pp"} {
		r.counted(t, event, n[function], "jump")
	}
	r.whole(t)
	for _, l := range append(r.of("ptr"), r.of("ret")...) {
		list.Ptrs[l.number(t, "i")].checkValue(t, l)
	}
	for _, l := range append(r.of("str"), r.of("pp")...) {
		list.Strs[l.number(t, "i")].checkString(t, l)
	}
}

func (c *badCase) checkValue(t testing.TB, l line) {
	t.Helper()
	got := l.args["v"]
	if c.Kind == "ok" && got != strconv.FormatUint(c.Value, 10) || c.Kind == "fault" && got != "0" && got != "(fault)" {
		t.Errorf("%s: %s is %s, not %s %d", l.event, c.What, got, c.Kind, c.Value)
	}
}

func (c *badCase) checkString(t testing.TB, l line) {
	t.Helper()
	if c.What == "unmapped" {
		return // our own mappings may have come to lie there
	}
	if fault := l.args["s"] == "(fault)"; fault != (c.Kind == "fault") {
		t.Errorf("%s: %s is %.40s, not %s", l.event, c.What, l.args["s"], c.Kind)
	}
}

// A program in a seccomp jail is left alone, or probed where the jail permits it.
func TestSeccomp(t *testing.T) {
	for _, mode := range []string{"strict", "kill", "errno", "trap"} {
		t.Run(mode, func(t *testing.T) {
			p := program(t, "seccomp", mode)
			fails(t, command(t, "trace", "-p", pid(p), "p:a jailed"), 1, "seccomp")
			intact(t, p.PID)
			if n := right(t, p, "go 100"); n["jailed"] != 100 || n["sigsys"] != 0 {
				t.Errorf("%v", n)
			}
		})
	}
	p := program(t, "seccomp", "none")
	s := trace(t, p.PID, "p:a jailed a=%di")
	n := right(t, p, "go 100")
	r := s.end()
	r.counted(t, "a", n["jailed"], "jump")
}

// A thread in a jail that kills it for looking at its signal mask hits probes whose argument
// is a bad pointer, and lives. Where another thread blocks SIGSEGV the kernel reads such
// arguments, or nobody does.
func TestSeccompThread(t *testing.T) {
	p := program(t, "seccomp", "thread")
	s := trace(t, p.PID, "p:a jailed a=%di v=+0(%di):u64", "r:b jailed s=+0($arg1):string v=$retval")
	n := right(t, p, "go 100")
	r := s.end()
	r.counted(t, "a", n["jailed"], "jump")
	r.counted(t, "b", n["jailed"], "jump")
	for i, l := range r.of("a") {
		if l.number(t, "a") != uint64(i) || l.args["v"] != "0" {
			t.Fatalf("%d: %v", i, l)
		}
	}

	p = testprog.Start(t, testprog.Copy(t, testprog.Build(t, "seccomp")), "blocked") // uprobes belong to a file
	for _, args := range [][]string{{"r:b jailed v=+0($retval):u64"}, {"--tactic", "jump", "p:a jailed v=+0(%di):u64"}} {
		fails(t, command(t, append([]string{"trace", "-p", pid(p)}, args...)...), 1, "reads memory", "blocks SIGSEGV", "seccomp")
		intact(t, p.PID)
	}
	s = trace(t, p.PID, "p:a jailed v=+0(%di):u64", "r:b go max=$arg1")
	n = right(t, p, "go 100")
	r = s.end()
	r.counted(t, "a", n["jailed"], "uprobe")
	r.counted(t, "b", 1, "jump")
}

// The program ends, in each of its ways, while it is traced.
func TestProgramEnds(t *testing.T) {
	for n, how := range []struct {
		command string
		calls   uint64
	}{
		{"exit 3", 0},
		{"_exit 4", 0},
		{"group", 0},
		{"abort", 0},
		{"kill 9", 0},
		{"kill 11", 0},
		{"kill 5", 0},
		{"kill 15", 0},
		{"within", 1},
	} {
		for i, tactic := range tactics {
			if !long && i != n%len(tactics) {
				continue
			}
			t.Run(how.command+" "+want(tactic), func(t *testing.T) {
				p := program(t, "exit")
				s := trace(t, p.PID, withTactic(tactic, "p:a last_call a=%di", "r:b last_call ret=$retval a=$arg1")...)
				n := right(t, p, "go 100")
				p.Send(how.command)
				st := p.Wait()
				r := s.wait()
				if r.code != 0 {
					t.Fatal(r.outcome)
				}
				r.counted(t, "a", n["last_call"]+how.calls, want(tactic))
				r.counted(t, "b", n["last_call"], want(tactic))
				r.whole(t)
				checkEnd(t, how.command, st.Sys().(syscall.WaitStatus))
			})
		}
	}
}

// checkEnd checks that a program ended as it was told.
func checkEnd(t testing.TB, how string, ws syscall.WaitStatus) {
	t.Helper()
	word, arg, _ := strings.Cut(how, " ")
	n, _ := strconv.Atoi(arg)
	ok := false
	switch word {
	case "exit", "_exit":
		ok = ws.ExitStatus() == n
	case "group":
		ok = ws.ExitStatus() == 9
	case "within":
		ok = ws.ExitStatus() == 7
	case "abort":
		ok = ws.Signal() == unix.SIGABRT
	case "kill":
		ok = ws.Signal() == syscall.Signal(n)
	}
	if !ok {
		t.Errorf("%q ended with %#x", how, ws)
	}
}

// The first thread ends, others go on.
func TestFirstThreadEnds(t *testing.T) {
	p := program(t, "exit")
	s := trace(t, p.PID, "p:a last_call a=%di", "r:b last_call ret=$retval a=$arg1")
	right(t, p, "go 100")
	right(t, p, "main")
	n := right(t, p, "go 100")
	s.interrupt()
	r := s.wait()
	if r.code != 0 {
		t.Fatal(r.outcome)
	}
	r.counted(t, "a", n["last_call"], "jump")
	r.counted(t, "b", n["last_call"], "jump")
	right(t, p, "go 10")
}

// Somebody kills the program: the trace ends with what it had.
func TestProgramKilled(t *testing.T) {
	p := program(t, "exit")
	s := trace(t, p.PID, "p:a last_call a=%di")
	n := right(t, p, "go 1000")
	p.Signal(unix.SIGKILL)
	r := s.wait()
	if r.code != 0 {
		t.Fatal(r.outcome)
	}
	r.counted(t, "a", n["last_call"], "jump")
	r.whole(t)
}

// The program executes itself anew, from either thread: the trace ends and says why, and the
// new program is probed like any other.
func TestExec(t *testing.T) {
	for _, how := range []string{"exec", "thread"} {
		t.Run(how, func(t *testing.T) {
			p := program(t, "exec")
			s := trace(t, p.PID, "p:a gen_work a=%di", "r:b gen_work ret=$retval a=$arg1")
			n := right(t, p, "go 100")
			p.Send(how)
			if l := p.Line(); l != "ready" {
				t.Fatalf("%q", l)
			}
			r := s.wait()
			if r.code != 0 || !strings.Contains(r.stderr, "executes another program") {
				t.Fatal(r.outcome)
			}
			r.counted(t, "a", n["gen_work"], "jump")
			r.counted(t, "b", n["gen_work"], "jump")
			intact(t, p.PID)
			s = trace(t, p.PID, "p:a gen_work a=%di")
			n = right(t, p, "go 50")
			r = s.end()
			r.counted(t, "a", n["gen_work"], "jump")
		})
	}
}

// A program that is stopped is probed, and stays stopped.
func TestStoppedProgram(t *testing.T) {
	p := program(t, "exit")
	p.Signal(unix.SIGSTOP)
	within(t, "stop", func() bool { return strings.HasPrefix(field(t, p.PID, p.PID, "State"), "T") })
	cmd := command(t, "trace", "-p", pid(p), "--duration", "50ms", "p:a last_call")
	if o := run(t, cmd); o.code != 0 {
		t.Fatal(o)
	}
	// The kernel wakes a stopped thread that its tracer leaves, and the thread stops again by itself.
	within(t, "stop again", func() bool { return strings.HasPrefix(field(t, p.PID, p.PID, "State"), "T") })
	intact(t, p.PID)
	p.Signal(unix.SIGCONT)
	right(t, p, "go 10")
}

// A vfork parent waits where no stop reaches it. One that has another thread is probed all the same; with none that
// could make a system call for it, it is waited for, or named.
func TestVfork(t *testing.T) {
	p := program(t, "vforker")
	s := trace(t, p.PID, "p:a vforking", "p:b parent_work a=%di", "r:c vforking ret=$retval")
	n := right(t, p, "go 10")
	r := s.end()
	r.counted(t, "a", n["vforking"], "jump")
	r.counted(t, "b", n["parent_work"], "jump")
	p.Send("hold")
	within(t, "vfork", func() bool { return strings.HasPrefix(field(t, p.PID, p.PID, "State"), "D") })
	fails(t, command(t, "trace", "-p", pid(p), "p:a vforking"), 1, pid(p), "state D")
	p.Send("") // the line that the child waits for
	p.Line()
	s.before.same(t)
	right(t, p, "go 1")
}

// Memory that the program may not have: it is refused with the figures and what to change, and nothing is left
// behind; where there is enough the probe stands.
func TestMemoryLimit(t *testing.T) {
	p := program(t, "exit")
	before := stateOf(t, p.PID)
	for _, extra := range []uint64{0, 1 << 20, 40 << 20} {
		old := limit(t, p.PID, extra)
		if extra < 2<<20 {
			fails(t, command(t, "trace", "-p", pid(p), "p:a last_call"), 1, "RLIMIT_AS", "needed", "prlimit --pid "+pid(p))
		} else {
			s := trace(t, p.PID, "p:a last_call")
			n := right(t, p, "go 10")
			s.end().counted(t, "a", n["last_call"], "jump")
		}
		if err := unix.Prlimit(p.PID, unix.RLIMIT_AS, &old, nil); err != nil {
			t.Fatal(err)
		}
		before.same(t)
	}
	right(t, p, "go 10")
}

// limit leaves a process extra bytes of address space, and returns its old limit.
func limit(t testing.TB, pid int, extra uint64) (old unix.Rlimit) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(b), &pages); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_AS, nil, &old); err != nil {
		t.Fatal(err)
	}
	now := unix.Rlimit{Cur: pages<<12 + extra, Max: old.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_AS, &now, nil); err != nil {
		t.Fatal(err)
	}
	return old
}

// A program started by the command: its status is the command's.
func TestCommandStatus(t *testing.T) {
	exit := testprog.Build(t, "exit")
	for in, code := range map[string]int{
		"go 10\nexit 0": 0, "go 10\nexit 3": 3, "go 10\nwithin": 7, "go 10\nkill 9": 137, "go 10\nkill 15": 143, "go 10\nabort": 134, "go 10\ngroup": 9, "go 10\nquit": 0,
	} {
		file := filepath.Join(t.TempDir(), "trace")
		cmd := command(t, "trace", "-o", file, "p:a last_call a=%di", "r:b last_call $retval", "--", exit)
		cmd.Stdin = strings.NewReader(in + "\n")
		o := run(t, cmd)
		if o.code != code {
			t.Errorf("%q: want status %d: %v", in, code, o)
		}
		r := result{outcome: o, totals: totals(o.stderr)}
		calls := uint64(10)
		if strings.Contains(in, "within") {
			calls++
		}
		r.counted(t, "a", calls, "jump")
		r.counted(t, "b", 10, "jump")
		if !strings.HasPrefix(o.stdout, "ready\n") || strings.Contains(o.stdout, "last_call+0x0") {
			t.Errorf("%q: the program's output is not alone: %v", in, o)
		}
		text, err := os.ReadFile(file)
		if err != nil || strings.Count(string(text), "\n") != int(calls)+10 {
			t.Errorf("%q: %d lines, %v", in, strings.Count(string(text), "\n"), err)
		}
	}
}

// A program whose probes can not be armed is never started.
func TestCommandNotStarted(t *testing.T) {
	exit := testprog.Build(t, "exit")
	for _, c := range []struct {
		code int
		args []string
	}{
		{1, []string{"p:a no_such_symbol_here"}},
		{2, []string{"p:a last_call %nonsense"}},
		{2, []string{"p:a last_call +0(%di"}},
		{1, []string{"p:a last_call", "p:b no_such_symbol_here"}},
	} {
		o := fails(t, command(t, append(append([]string{"trace"}, c.args...), "--", exit)...), c.code)
		if o.stdout != "" { // it says that it is ready
			t.Errorf("%q: the program has run: %v", c.args, o)
		}
	}
	fails(t, command(t, "trace", "p:a main", "--", "/no/such/program"), 1, "/no/such/program")
}

// Ctrl-C at the terminal is for the program that was started: the command goes on until it ends.
func TestCommandInterrupted(t *testing.T) {
	cmd := command(t, "trace", "--stat", "p:a last_call a=%di", "--", testprog.Build(t, "exit"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s := &session{t: t}
	s.start(cmd)
	if _, err := fmt.Fprintln(in, "go 10"); err != nil {
		t.Fatal(err)
	}
	within(t, "an answer", func() bool { return strings.Contains(s.out.String(), "last_call") })
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	r := s.wait()
	if r.code != 128+int(unix.SIGINT) {
		t.Error(r.outcome)
	}
	r.counted(t, "a", 10, "jump")
}

// Beside a tracer that serves nobody else a second one is told who holds the process.
func TestHeld(t *testing.T) {
	p := program(t, "exit")
	s := trace(t, p.PID, "--alone", "p:a last_call")
	holder := strconv.Itoa(s.cmd.Process.Pid)
	fails(t, command(t, "trace", "-p", pid(p), "p:b last_call"), 1, pid(p), holder)
	fails(t, command(t, "detach", "-p", pid(p)), 1, pid(p), holder)
	n := right(t, p, "go 100")
	r := s.end()
	r.counted(t, "a", n["last_call"], "jump")
}

// SIGTERM ends a trace as Ctrl-C does.
func TestTerminated(t *testing.T) {
	p := program(t, "exit")
	s := trace(t, p.PID, "p:a last_call")
	n := right(t, p, "go 100")
	if err := s.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r := s.wait()
	if r.code != 0 {
		t.Error(r.outcome)
	}
	r.counted(t, "a", n["last_call"], "jump")
	s.before.same(t)
}
