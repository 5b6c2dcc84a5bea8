package testprog

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/cbuild"
)

// Talker is a running program of the directory process, that answers each line by one of words: "how" by "ok ...".
type Talker struct {
	Cmd *exec.Cmd
	PID int

	tb  TB
	in  io.WriteCloser
	out *bufio.Reader
}

// BuildTalker compiles a program of the directory process, which lies in dir.
func BuildTalker(tb TB, dir, name string, flags ...string) string {
	tb.Helper()
	path, err := cbuild.Build(os.DirFS(dir), "process", name, flags...)
	if err != nil {
		tb.Fatalf("%v (install gcc)", err)
	}
	return path
}

// Talk starts a program and waits until it is ready. It is killed at the test's end.
func Talk(tb TB, path string, args ...string) *Talker {
	tb.Helper()
	r := &Talker{tb: tb, Cmd: exec.Command(path, args...)}
	r.Cmd.Stderr = os.Stderr
	in, err := r.Cmd.StdinPipe()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	out, err := r.Cmd.StdoutPipe()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	if err := r.Cmd.Start(); err != nil {
		tb.Fatalf("%v", err)
	}
	r.in, r.out, r.PID = in, bufio.NewReader(out), r.Cmd.Process.Pid
	tb.Cleanup(func() {
		r.Cmd.Process.Kill()
		r.Cmd.Wait()
	})
	if l := r.Line(); l != "ready" {
		tb.Fatalf("%s: first line %q, want ready", path, l)
	}
	return r
}

// Line gives the program's next line.
func (r *Talker) Line() string {
	r.tb.Helper()
	type answer struct {
		line string
		err  error
	}
	c := make(chan answer, 1)
	go func() {
		l, err := r.out.ReadString('\n')
		c <- answer{strings.TrimSuffix(l, "\n"), err}
	}()
	select {
	case a := <-c:
		if a.err != nil {
			r.tb.Fatalf("process %d has ended: %v: %v", r.PID, a.err, r.Cmd.Wait())
		}
		return a.line
	case <-time.After(patience):
		r.tb.Fatalf("process %d does not answer", r.PID)
		return ""
	}
}

// Ask sends a line and gives the answer.
func (r *Talker) Ask(line string) string {
	r.tb.Helper()
	if _, err := io.WriteString(r.in, line+"\n"); err != nil {
		r.tb.Fatalf("process %d: %v", r.PID, err)
	}
	return r.Line()
}

// Fine asks the program whether all is well with it.
func (r *Talker) Fine() {
	r.tb.Helper()
	if a := r.Ask("how"); !strings.HasPrefix(a, "ok ") {
		r.tb.Fatalf("process %d: %s", r.PID, a)
	}
}
