package guestkit

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"kprobes.dev/kprobes/internal/guestkit/serial"
)

// agentSocket is the host's end of the guest's second serial port, in the guest's directory.
const agentSocket = "agent.sock"

// Serial are QEMU's arguments for the second serial port of a guest that has a directory:
// that which the agent serves.
func Serial(dir string) []string {
	return []string{"-serial", "unix:" + filepath.Join(dir, agentSocket) + ",server=on,wait=off"}
}

// ErrAnew is that the agent was started again while a request was on its way.
var ErrAnew = errors.New("the agent was started again")

// Line is the host's end of the line to the agent. One goroutine uses it at a time.
type Line struct {
	conn net.Conn
	s    *serial.Conn
	wait time.Duration
}

// Dial connects to the line of a guest whose kernel has not got to its agent yet. wait bounds
// each answer.
func Dial(dir string, wait time.Duration) (*Line, error) {
	conn, err := net.Dial("unix", filepath.Join(dir, agentSocket))
	if err != nil {
		return nil, err
	}
	return &Line{conn: conn, s: serial.New(conn, false), wait: wait}, nil
}

// Close ends the connection; an exchange that waits fails. It may be called by any goroutine,
// again too.
func (l *Line) Close() error {
	if err := l.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Ready waits for an agent to start.
func (l *Line) Ready() error {
	if err := l.conn.SetDeadline(time.Now().Add(l.wait)); err != nil {
		return err
	}
	var a serial.Answer
	if _, err := l.s.Receive(&a); err != nil || !a.Ready {
		return fmt.Errorf("the agent does not speak (%+v): %w", a, err)
	}
	return nil
}

// Send sends a request, of which the answer is not waited for.
func (l *Line) Send(req *serial.Request, body []byte) error {
	if err := l.conn.SetDeadline(time.Now().Add(l.wait)); err != nil {
		return err
	}
	return l.s.Send(req, body)
}

// Ask sends a request and waits for its answer. What failed in the guest is in the answer
// (Failed).
func (l *Line) Ask(req *serial.Request, body []byte) (serial.Answer, []byte, error) {
	var a serial.Answer
	if err := l.Send(req, body); err != nil {
		return a, nil, err
	}
	out, err := l.s.Receive(&a)
	if err == nil && a.Ready {
		err = ErrAnew
	}
	return a, out, err
}

// Failed is the error in an answer; its errno is found by errors.Is.
func Failed(a *serial.Answer) error {
	if a.Errno == 0 {
		return nil
	}
	return fmt.Errorf("guest: %s: %w", a.Error, syscall.Errno(a.Errno))
}
