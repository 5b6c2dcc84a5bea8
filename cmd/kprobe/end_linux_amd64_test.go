package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
)

// piped is a `kprobe trace` whose output goes to a pipe.
type piped struct {
	cmd   *exec.Cmd
	out   io.ReadCloser
	lines *bufio.Reader
	in    io.WriteCloser
	errs  bytes.Buffer
}

// startPiped starts one and returns when it has printed a line of the event a: the probe is armed.
func startPiped(t *testing.T, cmd *exec.Cmd) *piped {
	t.Helper()
	p := &piped{cmd: cmd}
	cmd.Stderr = &p.errs
	var err error
	if p.out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	p.lines = bufio.NewReaderSize(p.out, 4096)
	for {
		l, err := p.lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%v before the first line: %s", err, &p.errs)
		}
		if strings.Contains(l, " a: (") {
			return p
		}
	}
}

// read takes all that the command still prints.
func (p *piped) read() { go func() { _, _ = io.Copy(io.Discard, p.lines) }() }

// end waits for the command and gives its status.
func (p *piped) end(t *testing.T) int {
	t.Helper()
	var exit *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if ws := p.cmd.ProcessState.Sys().(interface{ Signaled() bool }); ws.Signaled() {
		t.Errorf("the command died: %v", p.cmd.ProcessState)
	}
	return p.cmd.ProcessState.ExitCode()
}

// gone checks that a process has no probe, by its own memory.
func gone(t *testing.T, bin string, pid int) {
	t.Helper()
	out, err := exec.Command(bin, "list", "-p", strconv.Itoa(pid)).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("list: %v: %s", err, out)
	}
	out, err = exec.Command(bin, "detach", "-p", strconv.Itoa(pid)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "holds nothing of ours") {
		t.Errorf("detach: %v: %s", err, out)
	}
}

// caught are the signals that end a trace, and end the command by default.
var caught = []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGABRT, unix.SIGXCPU}

// heedSignals has the commands of tests heed signals that this process was started to ignore, as under
// nohup. It holds for the rest of the process: other tests may rely on it at the same time.
var heedSignals = sync.OnceFunc(func() {
	for _, sig := range caught {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
})

// A SIGPIPE ends what a command does if nobody reads its output, and not if it is of another file.
func TestEndUnread(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pipes, ended, back := make(chan os.Signal), make(chan struct{}), make(chan struct{})
	go func() {
		endUnread(ctx, pipes, []*os.File{log, w}, func() { close(ended) })
		close(back)
	}()
	for range 3 { // unbuffered: with the last one taken, the others were judged
		pipes <- unix.SIGPIPE
	}
	select {
	case <-ended:
		t.Error("it ends though its output is read")
	default:
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	go func() {
		select {
		case pipes <- unix.SIGPIPE:
		case <-back:
		}
	}()
	<-ended
	<-back
}

// Whatever ends a trace and can be caught takes its probes out.
func TestTraceEnds(t *testing.T) {
	bin := build(t)
	prog := testprog.Start(t, testprog.Build(t, "leaf"), "1", "100")
	trace := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), bin, append([]string{"trace", "-p", strconv.Itoa(prog.PID)}, append(args, "p:a leaf")...)...)
	}
	heedSignals()
	for _, sig := range caught {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			p := startPiped(t, trace())
			p.read()
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if st := p.end(t); st != 0 || !strings.Contains(p.errs.String(), "\na hits=") && !strings.HasPrefix(p.errs.String(), "a hits=") {
				t.Errorf("status %d: %s", st, &p.errs)
			}
			gone(t, bin, prog.PID)
		})
		// The reader of the output reads no more: what ends the trace must not wait for it.
		t.Run(unix.SignalName(sig)+", output full", func(t *testing.T) {
			p := startPiped(t, trace())
			fill(t, prog.PID)
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				out, _ := exec.Command(bin, "list", "-p", strconv.Itoa(prog.PID)).Output()
				if len(out) == 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("the probe is still there: %s", out)
				}
			}
			p.read()
			if st := p.end(t); st != 0 {
				t.Errorf("status %d: %s", st, &p.errs)
			}
			gone(t, bin, prog.PID)
		})
	}
	t.Run("reader gone", func(t *testing.T) {
		p := startPiped(t, trace())
		p.out.Close()
		if st := p.end(t); st != exitFailed || !strings.Contains(p.errs.String(), "kprobe: stdout: broken pipe") {
			t.Errorf("status %d: %s", st, &p.errs)
		}
		if !strings.Contains(p.errs.String(), "a hits=") {
			t.Errorf("there is no summary: %s", &p.errs)
		}
		gone(t, bin, prog.PID)
	})
	t.Run("head", func(t *testing.T) {
		out, err := exec.Command("sh", "-c", fmt.Sprintf("%s trace -p %d 'p:a leaf' 2>&1 | head -3", bin, prog.PID)).Output()
		if err != nil || strings.Count(string(out), "\n") != 3 {
			t.Errorf("%v: %s", err, out)
		}
		gone(t, bin, prog.PID)
	})
	// Nothing is ever printed: that nobody will read it is noticed all the same.
	t.Run("reader gone, no hits", func(t *testing.T) {
		prog := testprog.Start(t, testprog.Build(t, "exit"))
		cmd := exec.CommandContext(t.Context(), bin, "trace", "-p", strconv.Itoa(prog.PID), "p:a last_call")
		go func() {
			for { // until it is armed and prints what startPiped waits for
				if out, _ := exec.Command(bin, "list", "-p", strconv.Itoa(prog.PID)).Output(); len(out) > 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			prog.Send("go 1")
		}()
		p := startPiped(t, cmd)
		p.out.Close()
		if st := p.end(t); st != exitFailed {
			t.Errorf("status %d: %s", st, &p.errs)
		}
		gone(t, bin, prog.PID)
	})
	t.Run("full", func(t *testing.T) {
		for _, args := range [][]string{{"-o", "/dev/full"}, {"-o", "/dev/full", "--format", "json"}} {
			out, err := trace(args...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || strings.Count(string(out), "no space left on device") != 1 {
				t.Errorf("%q: %v: %s", args, err, out)
			}
			gone(t, bin, prog.PID)
		}
		out, err := exec.Command("sh", "-c", fmt.Sprintf("%s trace -p %d 'p:a leaf' >/dev/full", bin, prog.PID)).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "kprobe: stdout: no space left on device") {
			t.Errorf("%v: %s", err, out)
		}
		gone(t, bin, prog.PID)
	})
	if n := prog.Counts("count"); n["bad"] != 0 {
		t.Errorf("the program was harmed: %v", n)
	}
}

// fill waits until the output of the command that probes a process is full: whoever holds the process is blocked in writing.
func fill(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		h, err := new(console).holderOf(&subject{pid: pid})
		if err != nil || h == nil {
			t.Fatalf("nobody holds process %d: %v", pid, err)
		}
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", h.PID))
		for _, f := range tasks {
			if b, _ := os.ReadFile(f); strings.Contains(string(b), "pipe_write") {
				return
			}
		}
		for _, f := range tasks {
			b, _ := os.ReadFile(strings.TrimSuffix(f, "wchan") + "syscall")
			if strings.HasPrefix(string(b), "1 0x") { // write(…)
				return
			}
		}
	}
	t.Fatal("the command never waits for its reader")
}

// A program that the command has started goes on without probes when the trace is ended, and
// gets the terminal's own signals itself.
func TestTraceOfChildEnds(t *testing.T) {
	bin, exe := build(t), testprog.Build(t, "leaf")
	start := func(t *testing.T) (*piped, int) {
		p := startPiped(t, exec.CommandContext(t.Context(), bin, "trace", "p:a leaf", "--", exe, "1", "100"))
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		var b []byte
		for _, f := range tasks {
			children, _ := os.ReadFile(f) // a thread may end meanwhile
			b = append(b, children...)
		}
		pid := 0
		for _, f := range strings.Fields(string(b)) {
			if to, _ := os.Readlink("/proc/" + f + "/exe"); to == exe {
				pid, _ = strconv.Atoi(f)
			}
		}
		if pid == 0 {
			t.Fatalf("the child is none of %q", b)
		}
		return p, pid
	}
	out := func(t *testing.T, pid int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			// Until it has left the tracer holds the process, and this is an error.
			if said, err := exec.Command(bin, "detach", "-p", strconv.Itoa(pid)).CombinedOutput(); err == nil {
				if !strings.Contains(string(said), "holds nothing of ours") {
					t.Errorf("the tracer left something behind: %s", said)
				}
				gone(t, bin, pid)
				return
			}
		}
		t.Error("the probe is still there")
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGABRT, unix.SIGXCPU} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			p, pid := start(t)
			p.read()
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			out(t, pid)
			fmt.Fprintln(p.in, "quit")
			if st := p.end(t); st != 0 {
				t.Errorf("status %d: %s", st, &p.errs)
			}
		})
	}
	t.Run("reader gone", func(t *testing.T) {
		p, pid := start(t)
		p.out.Close()
		out(t, pid)
		p.in.Close() // the child quits
		_ = p.cmd.Wait()
		if !strings.Contains(p.errs.String(), "kprobe: stdout: broken pipe") {
			t.Errorf("%s", &p.errs)
		}
	})
	// Keys send these to the child too, whose they are: it may go on.
	t.Run("keys", func(t *testing.T) {
		p, pid := start(t)
		p.read()
		for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGQUIT} {
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.Command(bin, "list", "-p", strconv.Itoa(pid)).Output(); err != nil || len(out) == 0 {
			t.Errorf("list: %v: %q", err, out)
		}
		fmt.Fprintln(p.in, "quit")
		if st := p.end(t); st != 0 {
			t.Errorf("status %d: %s", st, &p.errs)
		}
	})
}
