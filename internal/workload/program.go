package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// maxAnswer bounds a line that a workload answers, in bytes.
const maxAnswer = 4096

// patience is how long a workload that was told to quit may take.
const patience = 5 * time.Second

// Program is a workload that runs. It is for one goroutine.
type Program struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors bytes.Buffer // its stderr
}

// Start runs a workload: the program that BuildC built, or one that calls Serve. It is in
// a process group of its own, so that a terminal's Ctrl-C does not reach it, and ends when
// the caller ends or calls Close.
func Start(path string, args ...string) (*Program, error) {
	p := &Program{cmd: exec.Command(path, args...)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = &p.errors
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	p.out = bufio.NewReaderSize(out, maxAnswer)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	line, err := p.line()
	if err == nil && line != "ready" {
		err = fmt.Errorf("workload %s: %q, not ready", path, line)
	}
	if err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

// PID is the workload's process id.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Run lets every one of some threads, each bound to a CPU of its own as far as there are
// any, call a function of Functions calls times.
func (p *Program) Run(function string, calls uint64, threads int) (Result, error) {
	var r Result
	err := p.ask(fmt.Sprintf("run %s %d %d", function, calls, threads), &r)
	return r, err
}

// Written asks how many records the tracepoint wrote.
func (p *Program) Written() (uint64, error) {
	var w Written
	err := p.ask("written", &w)
	return w.Records, err
}

// Gap asks for how long the program was stopped at most since the call before. Only the Go
// program answers.
func (p *Program) Gap() (time.Duration, error) {
	var g Gap
	err := p.ask("gap", &g)
	return time.Duration(g.NS), err
}

func (p *Program) ask(command string, answer any) error {
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		return p.failed(command, err)
	}
	line, err := p.line()
	if err == nil {
		err = json.Unmarshal([]byte(line), answer)
	}
	return p.failed(command, err)
}

// failed adds the command to an error.
func (p *Program) failed(command string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("workload: %q: %w", command, err)
}

func (p *Program) line() (string, error) {
	line, err := p.out.ReadSlice('\n')
	if err != nil {
		return "", fmt.Errorf("answer of process %d: %w", p.PID(), err)
	}
	return strings.TrimSuffix(string(line), "\n"), nil
}

// Close tells the workload to quit and waits for it. One that does not is killed.
func (p *Program) Close() error {
	_, _ = io.WriteString(p.in, "quit\n")
	p.in.Close()
	timer := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	return p.wait()
}

func (p *Program) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return p.wait()
}

func (p *Program) wait() error {
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("workload: %w: %s", err, strings.TrimSpace(p.errors.String()))
	}
	return nil
}
