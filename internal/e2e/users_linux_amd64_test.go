package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// points counts the users' probes in a process; -1: they can not be counted at this moment.
func points(t testing.TB, pid int) (n int) {
	t.Helper()
	l, err := leftover(pid)
	if err != nil {
		return -1 // it is being taken out
	}
	if l != nil {
		for _, s := range l.Sites {
			for _, at := range s.Points {
				n += int(at.Probes) + int(at.Returns)
			}
		}
	}
	return n
}

// joins starts a command on a process that others use, and waits until so many more points stand in it.
func joins(t testing.TB, p *testprog.Proc, more int, args ...string) *session {
	t.Helper()
	was := -1
	within(t, "probes that can be counted", func() bool { was = points(t, p.PID); return was >= 0 })
	s := &session{t: t, pid: p.PID}
	s.start(command(t, append([]string{args[0], "-p", pid(p)}, args[1:]...)...))
	within(t, fmt.Sprintf("%q", args), func() bool {
		select {
		case <-s.done:
			t.Fatalf("%s ended early: %v", s.cmd, outcomeOf(t, s.err, s.out.String(), s.errs.String()))
		default:
		}
		return holderPID(t, p.PID) != 0 && points(t, p.PID) == was+more && standing(p.PID) && field(t, p.PID, p.PID, "TracerPid") == "0"
	})
	return s
}

// holderPID is the process that holds another one; 0: nobody does.
func holderPID(t testing.TB, pid int) int {
	t.Helper()
	p, err := process.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	h, err := p.Holder()
	if err != nil {
		t.Fatal(err)
	}
	if h == nil {
		return 0
	}
	return h.PID
}

// TestUsers has two commands use one process, with probes of the same names at the same place. One is ended, or killed, also the
// one that came first: the other counts on, and counts right. With the last one's end the process is as it was.
func TestUsers(t *testing.T) {
	for _, c := range []struct {
		name  string
		first bool // it is ended
		kill  bool
	}{{"first ends", true, false}, {"second ends", false, false}, {"first killed", true, true}, {"second killed", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			p := program(t, "exit")
			before := stateOf(t, p.PID)
			probes := []string{"p:a last_call n=%di:u64", "p last_call"}
			one := joins(t, p, 2, append([]string{"trace"}, probes...)...)
			two := joins(t, p, 2, append([]string{"trace"}, probes...)...)
			n1 := right(t, p, "go 1000")["last_call"]
			ends, stays := two, one
			if c.first {
				ends, stays = one, two
			}
			var r result
			if c.kill {
				if err := ends.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				<-ends.done
				within(t, "the killed one's probes to go", func() bool { return points(t, p.PID) == 2 })
			} else {
				ends.interrupt()
				if r = ends.wait(); r.code != 0 {
					t.Fatal(r.outcome)
				}
				if n := points(t, p.PID); n != 2 {
					t.Errorf("%d points are left beside the other's", n)
				}
			}
			n2 := right(t, p, "go 1000")["last_call"]
			for _, e := range []string{"a", "p_last_call_0"} {
				if !c.kill {
					r.counted(t, e, n1, "jump")
				}
			}
			if !c.kill {
				r.whole(t)
			}
			stays.interrupt()
			rest := stays.wait()
			if rest.code != 0 {
				t.Fatal(rest.outcome)
			}
			for _, e := range []string{"a", "p_last_call_0"} {
				rest.counted(t, e, n2, "jump")
			}
			rest.whole(t)
			before.same(t)
			if h := holderPID(t, p.PID); h != 0 {
				t.Errorf("process %d holds it still", h)
			}
		})
	}
}

// begun starts a program with probes, and waits until it asks for its first command.
func begun(t *testing.T, exe string, args ...string) (s *session, p *testprog.Proc, tell func(line string)) {
	t.Helper()
	s = &session{t: t}
	cmd := command(t, append(append([]string{"trace"}, args...), "--", exe)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.start(cmd)
	within(t, "the program", func() bool { return strings.Contains(s.out.String(), "ready") })
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		pids, _ := os.ReadFile(file) // the thread may have ended
		for _, child := range strings.Fields(string(pids)) {
			if name, _ := os.Readlink("/proc/" + child + "/exe"); name == exe {
				n, _ := strconv.Atoi(child)
				p = &testprog.Proc{PID: n, Path: exe}
			}
		}
	}
	if p == nil {
		t.Fatal("the command has no child that is the program")
	}
	return s, p, func(line string) {
		t.Helper()
		said := strings.Count(s.out.String(), "\n")
		if _, err := in.Write([]byte(line + "\n")); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(line, "exit") { // which has no answer
			within(t, line, func() bool { return strings.Count(s.out.String(), "\n") > said })
		}
	}
}

// TestUsersOfStarted has a command join a program that another one has started. The first is told to end, or killed: the program goes on, and the
// other counts on.
func TestUsersOfStarted(t *testing.T) {
	exe := testprog.Build(t, "exit")
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", kill), func(t *testing.T) {
			one, p, tell := begun(t, exe, "--stat", "p:a last_call")
			two := joins(t, p, 1, "trace", "--stat", "p:b last_call")
			tell("go 1000")
			sig := unix.SIGTERM
			if kill {
				sig = unix.SIGKILL
			}
			if err := one.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			within(t, "the first one's probe to go", func() bool { return points(t, p.PID) == 1 })
			tell("go 500")
			two.interrupt()
			two.wait().counted(t, "b", 1500, "jump")
			if h := holderPID(t, p.PID); h != 0 || points(t, p.PID) > 0 {
				t.Errorf("process %d holds it still", h)
			}
			tell("go 10")
			tell("exit 3")
			r := one.wait()
			if !strings.Contains(r.stdout, `{"last_call":1510,"bad":0}`) {
				t.Errorf("%v", r.outcome)
			}
			if !kill {
				r.counted(t, "a", 1000, "jump")
				if r.code != 3 {
					t.Error(r.outcome)
				}
			}
		})
	}
}

// TestStartedHolderKilled: what holds a program that was started is killed. Its command says so, and waits for the program, which goes on with what
// was left.
func TestStartedHolderKilled(t *testing.T) {
	one, p, tell := begun(t, testprog.Build(t, "exit"), "--stat", "p:a last_call")
	tell("go 100")
	h := holderPID(t, p.PID)
	if err := unix.Kill(h, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	tell("go 1000")
	tell("go 100")
	detach(t, p.PID)
	tell("go 10")
	tell("exit 3")
	r := one.wait()
	if r.code != 1 || !strings.Contains(r.stdout, `{"last_call":1210,"bad":0}`) || !strings.Contains(r.stderr, fmt.Sprintf("process %d (kprobe), which held it, was killed", h)) {
		t.Error(r.outcome)
	}
}

// TestUsersVerbs has each verb join a trace, and ends them one by one: each has counted what the program says.
func TestUsersVerbs(t *testing.T) {
	p := startWork(t)
	before := stateOf(t, p.PID)
	dat := tempFile(t, "dat")
	all := map[string]*session{
		"trace":  joins(t, p, 2, "trace", "p:a f_six n=%di:u64", "r:b f_six $retval"),
		"hist":   joins(t, p, 1, "hist", "p:a f_six n=%di:u64", "keys=n.log2"),
		"stat":   joins(t, p, 1, "stat", "p:a f_six"),
		"record": joins(t, p, 1, "record", "-o", dat, "p:a f_six n=%di:u64"),
		"filter": joins(t, p, 1, "trace", "p:a f_six n=%di:u64", "-f", "n > 100"),
	}
	was := right(t, p, "count")["f_six"]
	n := right(t, p, "go 2000")["f_six"] - was
	for _, verb := range []string{"hist", "trace", "record", "filter", "stat"} {
		s := all[verb]
		s.interrupt()
		r := s.wait()
		if r.code != 0 {
			t.Fatalf("%s: %v", verb, r.outcome)
		}
		if verb != "filter" {
			r.counted(t, "a", n, "jump")
		} else if a := r.totals["a"]; a.hits != n || uint64(len(r.lines)) != n-a.filtered || a.filtered == 0 {
			t.Errorf("filter: %+v, %d lines, the program makes %d calls", a, len(r.lines), n)
		}
		switch verb {
		case "hist":
			if !strings.Contains(r.stdout, fmt.Sprintf("Hits: %d\n", n)) {
				t.Errorf("histogram of %d hits: %s", n, r.stdout)
			}
		case "trace":
			r.counted(t, "b", n, "jump")
			r.whole(t)
		case "record":
			o := run(t, command(t, "report", "-i", dat))
			if lines := strings.Count(o.stdout, " a: "); uint64(lines) != n {
				t.Errorf("%d records, the program makes %d calls", lines, n)
			}
		}
	}
	before.same(t)
}

// TestUsersHolderKilled kills the process that holds another one for two users: both say so, the program goes on, and the next
// comer takes out what is left.
func TestUsersHolderKilled(t *testing.T) {
	p := program(t, "exit")
	before := stateOf(t, p.PID)
	one, two := joins(t, p, 1, "trace", "p:a last_call"), joins(t, p, 1, "trace", "p:a last_call")
	right(t, p, "go 100")
	if err := unix.Kill(holderPID(t, p.PID), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*session{one, two} {
		if r := s.wait(); r.code != 1 || !strings.Contains(r.stderr, "was killed") {
			t.Errorf("want status 1 and why: %v", r.outcome)
		}
	}
	right(t, p, "go 100")
	s := joins(t, p, -1, "trace", "p:a last_call") // in place of the two that are left
	was := right(t, p, "count")["last_call"]
	n := right(t, p, "go 100")["last_call"] - was
	s.interrupt()
	s.wait().counted(t, "a", n, "jump")
	before.same(t)
}

// TestUsersHolderTerminated has a signal end the process that holds another one: its users end well.
func TestUsersHolderTerminated(t *testing.T) {
	p := program(t, "exit")
	before := stateOf(t, p.PID)
	one, two := joins(t, p, 1, "trace", "p:a last_call"), joins(t, p, 1, "trace", "p:a last_call")
	n := right(t, p, "go 100")["last_call"]
	if err := unix.Kill(holderPID(t, p.PID), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*session{one, two} {
		r := s.wait()
		if r.code != 0 {
			t.Error(r.outcome)
		}
		r.counted(t, "a", n, "jump")
	}
	before.same(t)
}

// TestUsersCome has commands come and go at once: whoever finds the holder ending starts the next one.
func TestUsersCome(t *testing.T) {
	p := program(t, "exit")
	before := stateOf(t, p.PID)
	ended := make(chan outcome)
	const each, times = 4, 8
	for range each {
		go func() {
			for range times {
				cmd := command(t, "trace", "-p", pid(p), "--duration", "1ms", "p:a last_call")
				out, err := cmd.CombinedOutput()
				ended <- outcome{stdout: string(out), code: cmd.ProcessState.ExitCode(), stderr: fmt.Sprint(err)}
			}
		}()
	}
	for range each * times {
		if o := <-ended; o.code != 0 || !strings.Contains(o.stdout, "a hits=") {
			t.Error(o)
		}
	}
	right(t, p, "go 100")
	before.same(t)
}

// TestUsersTargetEnds has the program end under two users: both end, with what they have counted.
func TestUsersTargetEnds(t *testing.T) {
	p := program(t, "exit")
	one, two := joins(t, p, 1, "trace", "p:a last_call"), joins(t, p, 1, "trace", "p:a last_call")
	n := right(t, p, "go 100")["last_call"]
	p.Send("quit")
	for _, s := range []*session{one, two} {
		r := s.wait()
		if r.code != 0 {
			t.Error(r.outcome)
		}
		r.counted(t, "a", n, "jump")
	}
}

// TestUsersRefused asks a holder for what it does not give.
func TestUsersRefused(t *testing.T) {
	p := program(t, "exit")
	s := joins(t, p, 1, "trace", "p:a last_call")
	holder := strconv.Itoa(holderPID(t, p.PID))
	fails(t, command(t, "trace", "-p", pid(p), "--buffer-size", "65536", "p:b last_call"), 1, "held already", holder, "--buffer-size")
	fails(t, command(t, "trace", "-p", pid(p), "--text", "shared", "p:b last_call"), 1, "held already", "--text")
	fails(t, command(t, "trace", "-p", pid(p), "--alone", "p:b last_call"), 1, "held by", holder)
	fails(t, command(t, "trace", "-p", pid(p), "p:b nosuch"), 1, "nosuch")
	fails(t, command(t, "trace", "-p", pid(p), "-o", "/nosuch/dir", "p:b last_call"), 1, "open /nosuch/dir: no such file")
	fails(t, command(t, "detach", "-p", pid(p)), 1, pid(p), holder)
	dir := t.TempDir()
	here := command(t, "trace", "-p", pid(p), "--count", "5", "-o", "lines", "--probes", "defs")
	here.Dir = dir
	if err := os.WriteFile(dir+"/defs", []byte("p:c last_call\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	done := make(chan outcome)
	go func() { done <- run(t, here) }()
	within(t, "the second one's probe", func() bool { return points(t, p.PID) == 2 })
	n := right(t, p, "go 10")["last_call"]
	if o := <-done; o.code != 0 {
		t.Error(o)
	}
	if b, err := os.ReadFile(dir + "/lines"); err != nil || strings.Count(string(b), " c: ") != 5 {
		t.Errorf("%v: %s", err, b)
	}
	s.interrupt()
	s.wait().counted(t, "a", n, "jump")
}

// TestUsersMount has two mounts and a trace use one process, with events of the same name: each has its own, and its own hits. The first
// mount's command is killed: its files go, and the others stay.
func TestUsersMount(t *testing.T) {
	p := program(t, "opens")
	before := stateOf(t, p.PID)
	define := `echo 'p:look do_sys_open dfd=%di:s32' >> kprobe_events; `
	one := mount(t, p)
	one.is(define+`echo 1 > events/enable`, "")
	two := mount(t, p)
	two.is(`cat kprobe_events; `+define+`echo 1 > events/enable; cat kprobe_events`, "p:kprobes/look do_sys_open dfd=%di:s32\n")
	s := joins(t, p, 1, "trace", "p:look do_sys_open")
	right(t, p, "go 100")
	const n, more = 100, 200 // calls
	count := `grep -c ': look:' trace; cat kprobe_profile`
	want := fmt.Sprintf("%d\n  %-44s %15d %15d\n", n, "look", n, 0)
	one.is(count, want)
	two.is(count, want)
	if err := one.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = one.ended()
	within(t, "its events to go", func() bool { return points(t, p.PID) == 2 })
	within(t, "its files to go", func() bool { return sh(t, one.dir, "ls") == "" })
	right(t, p, "go 100")
	want = fmt.Sprintf("%d\n  %-44s %15d %15d\n", more, "look", more, 0)
	two.is(count, want)
	s.interrupt()
	s.wait().counted(t, "look", more, "jump")
	if err := unix.Unmount(two.dir, 0); err != nil {
		t.Error(err)
	}
	if err := two.ended(); err != nil {
		t.Errorf("%v: %s", err, two.errs)
	}
	before.same(t)
}

// TestKnobs turns the knobs of a process under a trace: hits while all is disarmed are not counted, and probes become breakpoints and jumps
// again.
func TestKnobs(t *testing.T) {
	p := program(t, "exit")
	turn := func(args ...string) { run0(t, append(args, "-p", pid(p))...) }
	fails(t, command(t, "disable", "-p", pid(p)), 1, pid(p), "nobody uses it")
	fails(t, command(t, "optimization", "-p", pid(p)), 2, "on or off")
	before := stateOf(t, p.PID)
	s := joins(t, p, 1, "trace", "p:a last_call")
	listed := func(word string) {
		t.Helper()
		if o := run(t, command(t, "list", "-p", pid(p))); strings.Contains(o.stdout, "last_call") != (word != "") || !strings.Contains(o.stdout, word) || o.stderr != "" {
			t.Errorf("want %q: %v", word, o)
		}
	}
	was := right(t, p, "go 100")["last_call"]
	listed("[OPTIMIZED]")
	turn("disable")
	listed("")
	n := right(t, p, "go 100")["last_call"] - was
	turn("enable")
	right(t, p, "go 100")
	turn("optimization", "off")
	listed("boost: kprobes-optimization is off")
	right(t, p, "go 100")
	turn("optimization", "on")
	listed("[OPTIMIZED]")
	all := right(t, p, "go 100")["last_call"]
	s.interrupt()
	s.wait().counted(t, "a", all-n, "jump")
	before.same(t)
	o := run(t, command(t, "blacklist", "-p", pid(p)))
	if o.code != 0 || !strings.Contains(o.stdout, "\t__restore_rt\n") {
		t.Error(o)
	}
}

// run0 runs the command, which must end well.
func run0(t testing.TB, args ...string) {
	t.Helper()
	if o := run(t, command(t, args...)); o.code != 0 {
		t.Errorf("%q: %v", args, o)
	}
}
