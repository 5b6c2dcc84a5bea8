package testprog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// patience is how long a program may take to answer. It is long because machines that
// run tests are slow at times; nothing measures it.
const patience = 3 * time.Minute

// maxLine bounds a program's line of output, in bytes.
const maxLine = 1 << 20

// Proc is a running test program. It is killed, by its pid, at the end of the test.
type Proc struct {
	PID  int
	Path string

	tb    TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	errs  lockedBuffer
	done  chan struct{} // closed when the process has been waited for
	state *os.ProcessState
}

// Start starts a program and waits until it says that it is ready.
func Start(tb TB, path string, args ...string) *Proc {
	tb.Helper()
	p := StartHeld(tb, path, args...)
	if l := p.Line(); l != "ready" {
		tb.Fatalf("%s: first line %q, want ready", path, l)
	}
	return p
}

// StartHeld starts a program without waiting for anything: for programs that do not speak
// the protocol, or that a test must reach before they are ready.
func StartHeld(tb TB, path string, args ...string) *Proc {
	tb.Helper()
	p, err := start(path, args)
	if err != nil {
		tb.Fatalf("start of %s: %v", path, err)
	}
	p.tb = tb
	tb.Cleanup(p.Kill)
	return p
}

func start(path string, args []string) (*Proc, error) {
	p := &Proc{Path: path, lines: make(chan string, 64), done: make(chan struct{})}
	out, err := p.exec(path, args)
	for i := 0; errors.Is(err, syscall.ETXTBSY) && i < 100; i++ {
		// A fork elsewhere in this process holds the file open for writing until its
		// exec: it will be gone in a moment (golang.org/issue/22315).
		time.Sleep(10 * time.Millisecond)
		out, err = p.exec(path, args)
	}
	if err != nil {
		return nil, err
	}
	p.PID = p.cmd.Process.Pid
	go p.read(out)
	go p.wait()
	return p, nil
}

// exec starts the process with pipes of our own: those of os/exec keep Wait from returning
// while a child of the program still holds them.
func (p *Proc) exec(path string, args []string) (out *os.File, err error) {
	p.cmd = exec.Command(path, args...)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	errs, ew, err := os.Pipe()
	if err != nil {
		out.Close()
		return nil, err
	}
	defer ew.Close()
	p.cmd.Stdout, p.cmd.Stderr = w, ew
	if err := p.cmd.Start(); err != nil {
		out.Close()
		errs.Close()
		return nil, err
	}
	go func() {
		defer errs.Close()
		_, _ = io.Copy(&p.errs, errs)
	}()
	return out, nil
}

// read hands on the program's lines until its output ends.
func (p *Proc) read(out *os.File) {
	defer out.Close()
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, maxLine)
	for sc.Scan() {
		p.lines <- sc.Text()
	}
	close(p.lines)
}

// wait waits for the process, once it has ended: a test may trace it, and a wait would take
// a stop for its end (process.OpenUnwaited).
func (p *Proc) wait() {
	awaitEnd(p.PID)
	_ = p.cmd.Wait()
	p.state = p.cmd.ProcessState
	close(p.done)
}

// Line returns the program's next line of output, without its end.
func (p *Proc) Line() string {
	p.tb.Helper()
	select {
	case l, ok := <-p.lines:
		if !ok {
			p.tb.Fatalf("%s (pid %d): its output ended; %s; stderr: %s", p.Path, p.PID, p.ended(), p.Stderr())
		}
		return l
	case <-time.After(patience):
		p.tb.Fatalf("%s (pid %d): no line within %v; %s; stderr: %s", p.Path, p.PID, patience, p.where(), p.Stderr())
	}
	return ""
}

// ended says how the program ended, or that it did not.
func (p *Proc) ended() string {
	select {
	case <-p.done:
		return p.state.String()
	case <-time.After(patience):
		return "it still runs; " + p.where()
	}
}

// Send writes one command to the program.
func (p *Proc) Send(command string) {
	p.tb.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.tb.Fatalf("%s (pid %d): command %q: %v; stderr: %s", p.Path, p.PID, command, err, p.Stderr())
	}
}

// Ask sends a command and decodes the program's answer, one line of JSON, into v; nil
// throws it away.
func (p *Proc) Ask(command string, v any) {
	p.tb.Helper()
	p.Send(command)
	p.decode(command, v)
}

// Counts sends a command and returns the answer's numbers by name.
func (p *Proc) Counts(command string) map[string]uint64 {
	p.tb.Helper()
	var m map[string]uint64
	p.Ask(command, &m)
	return m
}

func (p *Proc) decode(command string, v any) {
	p.tb.Helper()
	l := p.Line()
	if v == nil {
		return
	}
	if err := json.Unmarshal([]byte(l), v); err != nil {
		p.tb.Fatalf("%s (pid %d): answer %q to %q: %v", p.Path, p.PID, l, command, err)
	}
}

// Quit tells the program to end, decodes its last line into v (unless nil) and checks that
// it ended with status 0.
func (p *Proc) Quit(v any) {
	p.tb.Helper()
	p.Send("quit")
	p.decode("quit", v)
	if st := p.Wait(); st == nil || !st.Success() {
		p.tb.Fatalf("%s (pid %d): ended with %v; stderr: %s", p.Path, p.PID, st, p.Stderr())
	}
}

// Signal sends a signal to the program.
func (p *Proc) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := syscall.Kill(p.PID, sig); err != nil {
		p.tb.Fatalf("%s (pid %d): %v: %v", p.Path, p.PID, sig, err)
	}
}

// Alive says whether the program still runs.
func (p *Proc) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return syscall.Kill(p.PID, 0) == nil
	}
}

// Stopped says whether all threads of the program are stopped by a signal.
func (p *Proc) Stopped() bool {
	p.tb.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.PID))
	if err != nil || len(tasks) == 0 {
		p.tb.Fatalf("%s (pid %d): threads %v, %v; stderr: %s", p.Path, p.PID, tasks, err, p.Stderr())
	}
	for _, task := range tasks {
		if text, err := os.ReadFile(task); err != nil || !bytes.Contains(text, []byte("T (stopped)")) {
			return false
		}
	}
	return true
}

// Wait waits for the program to end and returns how it ended: nil if somebody else, a
// tracer in the same process, took its status. Lines not read by then are lost.
func (p *Proc) Wait() *os.ProcessState {
	p.tb.Helper()
	late := time.After(patience)
	lines := p.lines
	for {
		select {
		case <-p.done:
			return p.state
		case _, ok := <-lines:
			if !ok {
				lines = nil
			}
		case <-late:
			p.tb.Fatalf("%s (pid %d): did not end within %v; %s", p.Path, p.PID, patience, p.where())
		}
	}
}

// Stderr returns what the program wrote to its standard error so far.
func (p *Proc) Stderr() string { return p.errs.String() }

// Kill ends the program at once and waits for it. A stopped program ends too.
func (p *Proc) Kill() {
	select {
	case <-p.done:
		return
	default:
	}
	_ = syscall.Kill(p.PID, syscall.SIGKILL)
	p.in.Close()
	p.Wait()
}

// where tells what the kernel knows of the program: for failures.
func (p *Proc) where() string {
	wchan, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", p.PID))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return "process gone"
	}
	_, state, _ := bytes.Cut(status, []byte("State:"))
	state, _, _ = bytes.Cut(state, []byte("\n"))
	return fmt.Sprintf("state %s, waits in %q", bytes.TrimSpace(state), wchan)
}

// lockedBuffer is a buffer that one goroutine writes while others read.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns what was written so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
