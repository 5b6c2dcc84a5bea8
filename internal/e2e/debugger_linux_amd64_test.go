package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/testprog"
)

// gdb is a debugger that has a program.
type gdb struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out locked
}

// attachGDB attaches one while a trace goes on, which tells of it: told gives all that it has told. The kernel refuses it while the tracer stops the program, as it does for
// a moment to look at calls in progress: then it tries again.
func attachGDB(t *testing.T, p *testprog.Proc, told func() string) *gdb {
	t.Helper()
	g := &gdb{t: t, cmd: exec.Command("gdb", "-nx", "-q")}
	in, err := g.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	g.in = in
	g.cmd.Stdout, g.cmd.Stderr = &g.out, &g.out
	if err := g.cmd.Start(); err != nil {
		t.Fatalf("%v (install gdb)", err)
	}
	t.Cleanup(func() {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
		if t.Failed() {
			t.Logf("gdb: %s\nthe tracer: %s", g.out.String(), told())
		}
	})
	const refusal = "ptrace: Operation not permitted" // of the process; of one of its threads gdb warns, and tries itself again
	for try, refused := 1, 0; ; try++ {
		g.tell(fmt.Sprintf("attach %d\necho try %d\\n\n", p.PID, try))
		within(t, "gdb tries to attach", func() bool { return strings.Contains(g.out.String(), fmt.Sprintf("try %d\n", try)) })
		n := strings.Count(g.out.String(), refusal)
		if n == refused {
			break
		}
		refused = n
	}
	within(t, "the word", func() bool { return strings.Contains(told(), "gdb (process") })
	return g
}

func (g *gdb) tell(lines string) {
	g.t.Helper()
	if _, err := io.WriteString(g.in, lines); err != nil {
		g.t.Fatal(err)
	}
}

// leave ends it, and the program goes on.
func (g *gdb) leave() {
	g.t.Helper()
	if err := g.cmd.Process.Signal(unix.SIGINT); err != nil {
		g.t.Fatal(err)
	}
	g.tell("delete\ndetach\nquit\n")
	if err := g.cmd.Wait(); err != nil {
		g.t.Fatalf("gdb: %v: %s", err, g.out.String())
	}
}

// A debugger attaches while probes stand, and puts breakpoints on and behind the probed places: the probes
// have been taken out by then, the program computes the same, and they are armed again when it has gone.
func TestDebuggerComesLater(t *testing.T) {
	p := startWork(t)
	s := trace(t, p.PID, "p:a f_six a=$arg1", "p:b f_push")
	had := right(t, p, "go 100")
	g := attachGDB(t, p, s.errs.String)
	g.tell("set pagination off\nbreak *(f_six+3)\ncommands\nsilent\nprintf \"six %d\\n\", $rdi\ncontinue\nend\n" +
		"break *(f_push+1)\ncommands\nsilent\nprintf \"push %d\\n\", $rdi\ncontinue\nend\ncontinue\n")
	within(t, "gdb lets it go on", func() bool { return strings.Contains(g.out.String(), "Continuing.") })
	n := right(t, p, "go 20")
	six := func() int { return strings.Count(g.out.String(), "six ") }
	made := int(n["f_six"] - had["f_six"])
	within(t, "gdb has told all calls of f_six", func() bool { return six() >= made })
	g.leave()
	if six() != made {
		t.Errorf("gdb saw %d calls of f_six, the program made %d", six(), made)
	}
	within(t, "the probes are armed again", func() bool { return strings.Contains(s.errs.String(), "armed again") })
	m := right(t, p, "go 100")
	r := s.end()
	r.counted(t, "a", had["f_six"]+m["f_six"]-n["f_six"], "jump")
	r.counted(t, "b", had["f_push"]+m["f_push"]-n["f_push"], "jump")
}

// A call returns while a debugger is attached, so that its return is not seen. A later one on the same stack begins then, and
// returns when the probes are armed again: it is not recorded with what the earlier one's entry has kept.
func TestDebuggerBetweenEntryAndReturn(t *testing.T) {
	p := program(t, "leaver")
	s := trace(t, p.PID, "r:b inside depth=$arg1")
	right(t, p, "hold 1")
	g := attachGDB(t, p, s.errs.String)
	g.tell("set pagination off\ncontinue\n")
	right(t, p, "free")
	right(t, p, "hold 1")
	g.leave()
	within(t, "the probes are armed again", func() bool { return strings.Contains(s.errs.String(), "armed again") })
	right(t, p, "free")
	right(t, p, "call 3")
	s.end().counted(t, "b", 3, "jump")
}

// C code of a Go program replaces the handler of SIGSEGV while a debugger is attached, so that no probe tells of it. Bad pointers harm nobody when the probes
// are armed again.
func TestDebuggerWhileHandlerComes(t *testing.T) {
	p := testprog.Start(t, testprog.Build(t, "goloads", "CGO_ENABLED=1", "-tags=masks"))
	s := trace(t, p.PID, lookProbes[0])
	had := right(t, p, "go 100")["calls"]
	g := attachGDB(t, p, s.errs.String)
	g.tell("set pagination off\nhandle SIGURG nostop noprint pass\ncontinue\n")
	right(t, p, "leave 1")
	g.leave()
	within(t, "the probes are armed again", func() bool { return strings.Contains(s.errs.String(), "armed again") })
	had += right(t, p, "go 100")["calls"] + right(t, p, "return 1")["calls"]
	s.end().counted(t, "look", had, "jump")
}

// An object comes while a debugger is attached: what waits for it is armed when the debugger has gone, and the walk over the stack knows it then.
func TestDebuggerWhileObjectComes(t *testing.T) {
	p := program(t, "dl")
	lib := testprog.Build(t, "libdlone")
	core := openWith(t, p, nil)
	d, err := event.Parse("p:back back")
	if err != nil {
		t.Fatal(err)
	}
	d.Stack = event.MaxStack
	walked, err := core.Add([]*event.Def{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	work := addTo(t, core, &kprobes.AddOptions{Late: true}, "p:work "+lib+":lib_work")
	told := ""
	look := func() string {
		if err := core.Sync(); err != nil {
			told += err.Error() + "\n"
		}
		return told
	}
	g := attachGDB(t, p, look)
	g.tell("set pagination off\ncontinue\n")
	n := right(t, p, "open "+lib)
	orig := bytesAt(t, p.PID, n["addr"], 5)
	look()
	right(t, p, "call 5")
	g.leave()
	within(t, "the probes are armed again", func() bool { return strings.Contains(look(), "armed again") })
	within(t, "the object's probe is armed", func() bool {
		look()
		return !bytes.Equal(bytesAt(t, p.PID, n["addr"], 5), orig)
	})
	right(t, p, "call 5")
	right(t, p, "back 5")
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	counts(t, core, 5, walked[0], work[0])
	core.Poll(func(h *kprobes.Hit) {
		if frames, end, err := h.Callers(nil); h.Event.Name == "back" && (end != fetch.StackWhole || err != nil) {
			t.Errorf("%d callers, %v, %v", len(frames), end, err)
		}
	})
	if strings.Count(told, "\n") != 2 {
		t.Errorf("told: %s", told)
	}
}
