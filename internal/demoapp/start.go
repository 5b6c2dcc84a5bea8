package demoapp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// patience is how long a workload may take to answer, and to end.
const patience = 5 * time.Second

// App is a workload that runs as a process of its own. It is for one goroutine.
type App struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	errors bytes.Buffer // its stderr; whole once the process was waited for
}

// Start starts a program that calls Serve. It is in a process group of its own, so that
// a terminal's Ctrl-C reaches the caller alone; it ends when the caller ends or calls
// Close. Its clients wait for Resume.
func Start(path string, args ...string) (*App, error) {
	a := &App{cmd: exec.Command(path, args...), lines: make(chan string, 1)}
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a.cmd.Stderr = &a.errors
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("demo workload: %w", err)
	}
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("demo workload: %w", err)
	}
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("demo workload: %w", err)
	}
	go a.read(out)
	return a, nil
}

// read hands on the answers until there are no more.
func (a *App) read(out io.Reader) {
	defer close(a.lines)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		a.lines <- lines.Text()
	}
}

// PID is the workload's process id.
func (a *App) PID() int { return a.cmd.Process.Pid }

// Pause returns once no request is under way, and none will be until Resume.
func (a *App) Pause(ctx context.Context) (Counts, error) {
	var c Counts
	err := a.ask(ctx, "pause", &c)
	return c, err
}

// Resume lets the clients go on. The counts are those at that moment.
func (a *App) Resume(ctx context.Context) (Counts, error) {
	var c Counts
	err := a.ask(ctx, "resume", &c)
	return c, err
}

// Call lets the workload call kv.step n times.
func (a *App) Call(ctx context.Context, n int) (Cost, error) {
	var c Cost
	err := a.ask(ctx, fmt.Sprintf("call %d", n), &c)
	return c, err
}

func (a *App) ask(ctx context.Context, command string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := io.WriteString(a.in, command+"\n"); err != nil {
		return a.failed(command, err)
	}
	select {
	case <-ctx.Done():
		return a.failed(command, ctx.Err())
	case line, ok := <-a.lines:
		if !ok {
			return a.failed(command, io.ErrUnexpectedEOF)
		}
		return a.failed(command, json.Unmarshal([]byte(line), answer))
	}
}

func (a *App) failed(command string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("demo workload: process %d: %q: %w", a.PID(), command, err)
}

// Close tells the workload to end and waits for it; one that does not end is killed. An
// error says how it ended, if not well.
func (a *App) Close() error {
	a.in.Close()
	timer := time.AfterFunc(patience, func() { _ = a.cmd.Process.Kill() })
	defer timer.Stop()
	for range a.lines { // an answer that nobody waited for
	}
	err := a.cmd.Wait()
	if errors.Is(err, syscall.ECHILD) { // a tracer in this process was faster
		return nil
	}
	if err != nil {
		return fmt.Errorf("demo workload: process %d: %w%s", a.PID(), err, a.said())
	}
	return nil
}

// said is what the workload wrote to its standard error, shortened.
func (a *App) said() string {
	s := strings.TrimSpace(a.errors.String())
	if s == "" {
		return ""
	}
	return ": " + s[:min(len(s), 2000)]
}
