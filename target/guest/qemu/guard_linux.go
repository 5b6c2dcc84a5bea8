package qemu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// bye is what a guardian is told by a tracer that has tidied up itself.
const bye = "bye\n"

// guardWait is how long a guardian waits for a monitor that somebody else still holds.
const guardWait = 10 * time.Second

// Guard waits until r, a pipe from the tracer, ends. If the tracer has not said goodbye it
// was killed, and may have left the vCPUs stopped and breakpoints set: QEMU keeps both. Then
// Guard removes the breakpoints and lets the vCPUs run, also those of a machine that its
// owner had paused. Until it returns no other tracer can open the machine, if this process
// has been given the lock's file.
func Guard(spec Spec, r io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(r, 64))
	if err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	if strings.HasSuffix(string(b), bye) {
		return nil
	}
	mon, err := dialMonitor(spec.QMP, guardWait, func(string) {})
	if err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	defer mon.close()
	if err := setFree(spec.GDB, mon); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	return nil
}

// setFree releases the machine until its vCPUs keep running. A host that is busy has QEMU take a
// connection late, even one that has been given up: it stops the vCPUs for it then.
func setFree(gdb string, mon *monitor) error {
	for end := time.Now().Add(freeWait); ; {
		err := release(gdb, mon)
		steady := err == nil
		for range steadyLooks {
			time.Sleep(steadyStep)
			ran, _, e := mon.running()
			if e != nil {
				return errors.Join(err, e)
			}
			steady = steady && ran
		}
		if steady || time.Now().After(end) {
			return err
		}
	}
}

const (
	freeWait    = 2 * time.Minute // for how long it is tried
	steadyLooks = 20
	steadyStep  = 50 * time.Millisecond
)

// release undoes what a client of the gdb stub has left, and lets the vCPUs run.
func release(gdb string, mon *monitor) error {
	g, err := dialStub(gdb)
	if err == nil {
		err = g.detach()
		g.close()
	}
	_, status, e := mon.running()
	if e == nil && status == "paused" {
		e = mon.run("cont", nil, nil)
	}
	return errors.Join(err, e)
}

// Guardian gives Options.Guardian: it starts the command, in a session of its own, with the
// spec as last argument. The command is to call Guard with its standard input.
func Guardian(command ...string) func(Spec, *os.File) (io.WriteCloser, error) {
	return func(s Spec, lock *os.File) (io.WriteCloser, error) {
		cmd := exec.Command(command[0], append(command[1:len(command):len(command)], s.String())...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.ExtraFiles = []*os.File{lock}
		w, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		return &guardian{w, cmd}, nil
	}
}

// guardian is a started process and the pipe to it.
type guardian struct {
	io.WriteCloser
	cmd *exec.Cmd
}

// Close closes the pipe and waits for the process.
func (g *guardian) Close() error {
	return errors.Join(g.WriteCloser.Close(), g.cmd.Wait())
}
