package e2e

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
)

// gdb is a debugger that has a program.
type gdb struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out locked
}

// attachGDB attaches one while a trace goes on, which tells of it. The kernel refuses it while the tracer stops the program, as it does for
// a moment to look at calls in progress: then it tries again.
func attachGDB(t *testing.T, p *testprog.Proc, s *session) *gdb {
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
			t.Logf("gdb: %s\nthe tracer: %s", g.out.String(), s.errs.String())
		}
	})
	const refusal = "Operation not permitted"
	for try, refused := 1, 0; ; try++ {
		g.tell(fmt.Sprintf("attach %d\necho try %d\\n\n", p.PID, try))
		within(t, "gdb tries to attach", func() bool { return strings.Contains(g.out.String(), fmt.Sprintf("try %d\n", try)) })
		n := strings.Count(g.out.String(), refusal)
		if n == refused {
			break
		}
		refused = n
	}
	within(t, "the word", func() bool { return strings.Contains(s.errs.String(), "gdb (process") })
	return g
}

func (g *gdb) tell(lines string) {
	g.t.Helper()
	if _, err := io.WriteString(g.in, lines); err != nil {
		g.t.Fatal(err)
	}
}

// A debugger attaches while probes stand, and puts breakpoints on and behind the probed places: the probes
// have been taken out by then, the program computes the same, and they are armed again when it has gone.
func TestDebuggerComesLater(t *testing.T) {
	p := startWork(t)
	s := trace(t, p.PID, "p:a f_six a=$arg1", "p:b f_push")
	had := right(t, p, "go 100")
	g := attachGDB(t, p, s)
	g.tell("set pagination off\nbreak *(f_six+3)\ncommands\nsilent\nprintf \"six %d\\n\", $rdi\ncontinue\nend\n" +
		"break *(f_push+1)\ncommands\nsilent\nprintf \"push %d\\n\", $rdi\ncontinue\nend\ncontinue\n")
	within(t, "gdb lets it go on", func() bool { return strings.Contains(g.out.String(), "Continuing.") })
	n := right(t, p, "go 20")
	six := func() int { return strings.Count(g.out.String(), "six ") }
	made := int(n["f_six"] - had["f_six"])
	within(t, "gdb has told all calls of f_six", func() bool { return six() >= made })
	if err := g.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	g.tell("delete\ndetach\nquit\n")
	if err := g.cmd.Wait(); err != nil {
		t.Fatalf("gdb: %v: %s", err, g.out.String())
	}
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
	g := attachGDB(t, p, s)
	g.tell("set pagination off\ncontinue\n")
	right(t, p, "free")
	right(t, p, "hold 1")
	if err := g.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	g.tell("detach\nquit\n")
	if err := g.cmd.Wait(); err != nil {
		t.Fatalf("gdb: %v: %s", err, g.out.String())
	}
	within(t, "the probes are armed again", func() bool { return strings.Contains(s.errs.String(), "armed again") })
	right(t, p, "free")
	right(t, p, "call 3")
	s.end().counted(t, "b", 3, "jump")
}
