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
	// broken is why an exchange ended in its midst. An agent that is not started anew may take what is
	// sent then as the rest of it.
	broken error
}

// Dial connects to the line of a guest whose kernel has not got to its agent yet. wait bounds how long
// the guest may be silent while something is expected of it: a message of any size may take longer.
func Dial(dir string, wait time.Duration) (*Line, error) {
	conn, err := net.Dial("unix", filepath.Join(dir, agentSocket))
	if err != nil {
		return nil, err
	}
	return newLine(conn, wait), nil
}

func newLine(conn net.Conn, wait time.Duration) *Line {
	return &Line{conn: conn, s: serial.New(&patient{Conn: conn, wait: wait}, false)}
}

// patient is a connection that waits so long for each step.
type patient struct {
	net.Conn
	wait time.Duration
}

func (p *patient) Read(b []byte) (int, error) {
	if err := p.SetReadDeadline(time.Now().Add(p.wait)); err != nil {
		return 0, err
	}
	return p.Conn.Read(b)
}

func (p *patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(p.wait)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
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
	var a serial.Answer
	if _, err := l.s.Receive(&a); err != nil || !a.Ready {
		return fmt.Errorf("the agent does not speak (%+v): %w", a, err)
	}
	l.broken = nil
	return nil
}

// Send sends a request, of which the answer is not waited for. Once an exchange has failed, all later
// ones fail, until Ready.
func (l *Line) Send(req *serial.Request, body []byte) error {
	if l.broken != nil {
		return fmt.Errorf("the line to the guest is out of step since an earlier request: %w", l.broken)
	}
	l.broken = l.s.Send(req, body)
	return l.broken
}

// Ask sends a request and waits for its answer. What failed in the guest is in the answer
// (Failed).
func (l *Line) Ask(req *serial.Request, body []byte) (serial.Answer, []byte, error) {
	var a serial.Answer
	if err := l.Send(req, body); err != nil {
		return a, nil, err
	}
	out, err := l.s.Receive(&a)
	l.broken = err
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
