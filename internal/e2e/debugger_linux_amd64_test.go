package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A debugger attaches while probes stand, and puts breakpoints on and behind the probed places: the probes
// have been taken out by then, the program computes the same, and they are armed again when it has gone.
func TestDebuggerComesLater(t *testing.T) {
	p := startWork(t)
	s := trace(t, p.PID, "p:a f_six a=$arg1", "p:b f_push")
	had := right(t, p, "go 100")
	cmd := exec.Command("gdb", "-nx", "-q", "-p", pid(p))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out locked
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (install gdb)", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("gdb: %s\nthe tracer: %s", out.String(), s.errs.String())
		}
	})
	within(t, "gdb has attached", func() bool { return strings.Contains(out.String(), "(gdb)") })
	within(t, "the word", func() bool { return strings.Contains(s.errs.String(), "gdb (process") })
	tell := func(lines string) {
		t.Helper()
		if _, err := in.Write([]byte(lines)); err != nil {
			t.Fatal(err)
		}
	}
	tell("set pagination off\nbreak *(f_six+3)\ncommands\nsilent\nprintf \"six %d\\n\", $rdi\ncontinue\nend\n" +
		"break *(f_push+1)\ncommands\nsilent\nprintf \"push %d\\n\", $rdi\ncontinue\nend\ncontinue\n")
	within(t, "gdb lets it go on", func() bool { return strings.Contains(out.String(), "Continuing.") })
	n := right(t, p, "go 20")
	six := func() int { return strings.Count(out.String(), "six ") }
	made := int(n["f_six"] - had["f_six"])
	within(t, "gdb has told all calls of f_six", func() bool { return six() >= made })
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	tell("delete\ndetach\nquit\n")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("gdb: %v: %s", err, out.String())
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
	cmd := exec.Command("gdb", "-nx", "-q", "-p", pid(p))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out locked
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (install gdb)", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("gdb: %s\nthe tracer: %s", out.String(), s.errs.String())
		}
	})
	within(t, "the word", func() bool { return strings.Contains(s.errs.String(), "gdb (process") })
	tell := func(lines string) {
		t.Helper()
		if _, err := in.Write([]byte(lines)); err != nil {
			t.Fatal(err)
		}
	}
	tell("set pagination off\ncontinue\n")
	right(t, p, "free")
	right(t, p, "hold 1")
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	tell("detach\nquit\n")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("gdb: %v: %s", err, out.String())
	}
	within(t, "the probes are armed again", func() bool { return strings.Contains(s.errs.String(), "armed again") })
	right(t, p, "free")
	right(t, p, "call 3")
	s.end().counted(t, "b", 3, "jump")
}
