package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/target/process"
)

// tracedProcess is a process as a tracee: one that runs, or one that was started for it.
type tracedProcess struct {
	probed
	s       *session
	started bool
	late    uint64 // threads that have waited in vain, as was told
}

// openProcess makes a tracee of a running process, or of a program that is started and
// held. It takes a flag's size of the ring; 0 means the default: what its CPUs and its memory
// allow, and for counters, which record nothing, the least.
func openProcess(pid int, cmd []string, buffer int, counters bool, text process.TextMode) (*tracedProcess, error) {
	o := process.TargetOptions{Buffer: buffer, Events: ring.MaxEvents, Text: text}
	if counters && buffer == 0 {
		o.Buffer = ring.MinData
	}
	s, err := openSession(pid, cmd, o)
	if err != nil {
		return nil, err
	}
	return &tracedProcess{probed: probed{core: s.core}, s: s, started: len(cmd) > 0}, nil
}

// openStarted makes a tracee of a process that another one has started and left where its program begins. It is killed if this
// process ends before Run.
func openStarted(pid, buffer int, text process.TextMode) (*tracedProcess, error) {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return nil, err
	}
	st, err := p.Stop(&process.StopOptions{Dies: true})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	s, err := newSession(p, &process.TargetOptions{Buffer: buffer, Events: ring.MaxEvents, Text: text, Stopped: st})
	if err != nil {
		return nil, err
	}
	return &tracedProcess{probed: probed{core: s.core}, s: s}, nil
}

func openSession(pid int, cmd []string, o process.TargetOptions) (*session, error) {
	if len(cmd) == 0 {
		return attach(pid, o)
	}
	p, st, err := process.Start(&process.Command{Path: cmd[0], Args: cmd[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return nil, err
	}
	o.Stopped = st
	return newSession(p, &o)
}

func (t *tracedProcess) Names() hit.Namer { return t.s.names }

func (t *tracedProcess) Run() error { return t.s.target.Run() }

// begin is Run for one of openStarted.
func (t *tracedProcess) begin() error { return errors.Join(t.Run(), t.s.proc.Signal(unix.SIGCONT)) }

// Sync follows what the process maps. It has ended when it is not the program any more
// that was probed.
func (t *tracedProcess) Sync() (ended bool, err error) {
	switch err = t.core.Sync(); {
	case errors.Is(err, process.ErrNoProcess):
		return true, nil
	case errors.Is(err, process.ErrExec):
		return true, fmt.Errorf("process %d executes another program: its probes are gone", t.s.proc.PID())
	}
	t.s.names.forget()
	if late := engine.Of(t.core).Late(); late != t.late && err == nil {
		t.late = late
		err = fmt.Errorf("process %d: a thread that had loaded an object waited a second, and went on: hits there until now, and callers there, are not known", t.s.proc.PID())
	}
	return false, err
}

func (t *tracedProcess) Exited() <-chan struct{} { return t.s.proc.Exited() }

func (t *tracedProcess) Remarks() []string {
	out := t.probed.Remarks()
	if s := t.core.Stats(); s.Dead+s.Corrupt > 0 {
		out = append(out, fmt.Sprintf("%d records of writers that were killed are lost, %d places of the ring were damaged", s.Dead, s.Corrupt))
	}
	if why := t.s.target.SharedText(); why != nil {
		out = append(out, fmt.Sprintf("%v: a kernel uprobe that is placed inside a probe there would kill the program", why))
	}
	if n, why := t.s.target.KeptText(); n > 0 {
		out = append(out, fmt.Sprintf("process %d: %d pages of text stay private copies, with the bytes of their file: %v", t.s.proc.PID(), n, why))
	}
	return out
}

// Status waits for the child and makes its status ours: 128+N if a signal killed it.
func (t *tracedProcess) Status() error {
	if !t.started {
		return nil
	}
	t.s.proc.Unlock() // nothing of the tracer's is in it, and it may go on for long
	return waitStatus(t.s.proc)
}

// waitStatus waits for the end of a program that was started here.
func waitStatus(p *process.Proc) error {
	st, err := p.Wait()
	if err != nil {
		return err
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return statusError(128 + int(ws.Signal()))
	}
	if code := st.ExitCode(); code != 0 {
		return statusError(code)
	}
	return nil
}

func (t *tracedProcess) Close() error { return t.s.proc.Close() }
