package qemu

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

const (
	// window is how many commands are sent before their answers are read: the stub reads
	// nothing while nobody reads what it says.
	window = 256
	// maxThreads bounds how many vCPUs a stub may name.
	maxThreads = 4096
)

// stub is a client of QEMU's gdb stub. Its methods are called by one goroutine at a time. The
// connection itself stops the vCPUs, and so does any byte sent while they run, unless a packet
// of the stub waits to be acknowledged: then all but the acknowledgement is thrown away. The
// next packet counts as one (QEMU 7.2, gdbstub.c, gdb_read_byte).
type stub struct {
	path    string
	wire    *wire
	tokens  chan []token
	said    []token       // taken from tokens, and not looked at yet
	done    chan struct{} // closed when the connection is gone
	closing chan struct{} // closed when nobody takes tokens any more
	size    int           // of the largest packet that the stub takes
	threads []string      // the vCPUs' ids, by index
	wait    time.Duration // how long the stub may be silent
	unacked bool          // a packet of the stub waits to be acknowledged
	closed  bool
}

// dialStub connects, which stops the vCPUs, and removes the breakpoints of whoever was
// connected before.
func dialStub(path string) (*stub, error) {
	w, err := dialWire(path, patience)
	if err != nil {
		return nil, fmt.Errorf("gdb stub of QEMU: %w", err)
	}
	g := &stub{
		path: path, wire: w, tokens: make(chan []token, 2*window),
		done: make(chan struct{}), closing: make(chan struct{}), wait: greeting,
	}
	go g.read()
	if err := g.hello(); err != nil {
		g.close()
		if errors.Is(err, unix.ETIMEDOUT) {
			err = fmt.Errorf("%w; another client may hold it: it takes one at a time", err)
		}
		return nil, fmt.Errorf("gdb stub of QEMU at %s: %w", path, err)
	}
	return g, nil
}

func (g *stub) read() {
	defer close(g.done)
	r := bufio.NewReader(g.wire)
	var batch []token
	for {
		t, err := readToken(r)
		if err == nil {
			batch = append(batch, t)
			if r.Buffered() > 0 {
				continue
			}
		}
		select {
		case g.tokens <- batch:
			batch = nil
		case <-g.closing:
			return
		}
		if err != nil {
			return
		}
	}
}

// hello brings a new connection into a known state. Whether the stub tells by itself that
// the vCPUs have stopped depends on whether they ran; '?' removes all breakpoints.
func (g *stub) hello() error {
	// Without a look at the description of the target no register can be written.
	answers, err := g.ask("qSupported:xmlRegisters=i386", "?", "Qqemu.PhyMemMode:1", "qXfer:features:read:target.xml:0,100")
	if err != nil {
		return err
	}
	g.wait = patience
	g.size = packetSize(answers[0])
	if answers[2] != "OK" {
		return errno.Errorf(unix.EOPNOTSUPP, "QEMU does not know Qqemu.PhyMemMode (answer %.40q): it is older than 4.1", answers[2])
	}
	return g.learnThreads()
}

// packetSize reads PacketSize=HEX, with the stub's own minimum where it is not there.
func packetSize(supported string) int {
	for field := range strings.SplitSeq(supported, ";") {
		if s, ok := strings.CutPrefix(field, "PacketSize="); ok {
			if n, err := strconv.ParseUint(s, 16, 32); err == nil {
				return int(min(max(n, 512), maxPacket))
			}
		}
	}
	return 512
}

// learnThreads lists the vCPUs, which may have become more.
func (g *stub) learnThreads() error {
	var ids []string
	cmd := "qfThreadInfo"
	for {
		a, err := g.ask(cmd)
		if err != nil {
			return err
		}
		list, more := strings.CutPrefix(a[0], "m")
		if !more {
			break
		}
		for id := range strings.SplitSeq(list, ",") {
			if !isThread(id) || len(ids) == maxThreads {
				return errno.Errorf(unix.EPROTO, "list of vCPUs: %.40q after %d", id, len(ids))
			}
			ids = append(ids, id)
		}
		cmd = "qsThreadInfo"
	}
	if len(ids) == 0 {
		return errno.Errorf(unix.EPROTO, "list of vCPUs: it is empty")
	}
	g.threads = ids
	return nil
}

// ask sends commands, to stopped vCPUs, and returns their answers.
func (g *stub) ask(commands ...string) ([]string, error) {
	answers := make([]string, 0, len(commands))
	for len(commands) > 0 {
		batch := commands[:min(window, len(commands))]
		commands = commands[len(batch):]
		var b []byte
		for _, c := range batch {
			b = appendPacket(b, c)
		}
		if err := g.send(b); err != nil {
			return nil, err
		}
		for _, c := range batch {
			a, err := g.answer(c)
			if err != nil {
				return nil, err
			}
			answers = append(answers, a)
		}
	}
	return answers, nil
}

// answer takes the answer to a command. Stop replies before it are late news.
func (g *stub) answer(command string) (string, error) {
	acked := false
	for {
		t, err := g.next()
		switch {
		case err != nil:
			return "", fmt.Errorf("%.40q: %w", command, err)
		case t.ack == '-':
			return "", errno.Errorf(unix.EPROTO, "%.40q: the stub did not understand the packet", command)
		case t.ack == '+':
			acked = true
		case acked:
			return t.data, nil
		}
	}
}

// must sends commands whose answer is to be OK.
func (g *stub) must(commands ...string) error {
	answers, err := g.ask(commands...)
	if err != nil {
		return err
	}
	for i, a := range answers {
		if a != "OK" {
			return errno.Errorf(unix.EIO, "gdb stub of QEMU: %.40q: answer %.40q, not OK", commands[i], a)
		}
	}
	return nil
}

// acknowledge tells the stub that what it said last was heard, so that it listens again.
func (g *stub) acknowledge() error {
	if !g.unacked {
		return nil
	}
	return g.send([]byte{'+'})
}

// send sends packets, or what acknowledges one.
func (g *stub) send(b []byte) error {
	if g.closed {
		return g.over()
	}
	g.unacked = false
	_, err := g.wire.Write(b)
	switch {
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return fmt.Errorf("gdb stub: %w", ErrGone)
	case err != nil:
		return fmt.Errorf("gdb stub of QEMU: %w", err)
	}
	return nil
}

// next takes what the stub says next.
func (g *stub) next() (token, error) {
	for len(g.said) == 0 {
		if err := g.listen(); err != nil {
			return token{}, err
		}
	}
	t := g.said[0]
	g.said = g.said[1:]
	if t.ack == 0 {
		g.unacked = true
	}
	return t, nil
}

// listen waits until the stub says something.
func (g *stub) listen() error {
	timer := time.NewTimer(g.wait)
	defer timer.Stop()
	select {
	case g.said = <-g.tokens:
		return nil
	case <-g.done:
	case <-timer.C:
		return errno.Errorf(unix.ETIMEDOUT, "gdb stub of QEMU: silent for %v", g.wait)
	}
	select {
	case g.said = <-g.tokens: // before the end
		return nil
	default:
		return g.over()
	}
}

// over is why the stub is not there any more: QEMU has closed the connection, or close has.
func (g *stub) over() error {
	if g.closed {
		return fmt.Errorf("gdb stub: %w", errGivenUp)
	}
	return fmt.Errorf("gdb stub: %w", ErrGone)
}

// interrupt stops vCPUs that run. A breakpoint may have been faster.
func (g *stub) interrupt() (string, error) {
	if reply := g.drain(); reply != "" {
		return reply, nil
	}
	if err := g.acknowledge(); err != nil {
		return "", err
	}
	if err := g.send([]byte{3}); err != nil {
		return "", err
	}
	return g.stopReply()
}

// drain throws away what was said and not asked for: that whoever owns the machine had
// stopped it. It returns the stop reply of a breakpoint, at which the vCPUs stand until we
// let them go on.
func (g *stub) drain() string {
	for {
		for _, t := range g.said {
			g.unacked = g.unacked || t.ack == 0
			if isTrap(t.data) {
				g.said = nil
				return t.data
			}
		}
		select {
		case g.said = <-g.tokens:
		default:
			g.said = nil
			return ""
		}
	}
}

// stopReply waits until the vCPUs have stopped.
func (g *stub) stopReply() (string, error) {
	for {
		t, err := g.next()
		if err != nil {
			return "", err
		}
		if isStop(t.data) {
			return t.data, nil
		}
	}
}

// resume lets stopped vCPUs run: command is c, or vCont;s:ID for a single instruction of
// one. It returns when the stub has taken the command.
func (g *stub) resume(command string) error {
	if err := g.send(appendPacket(nil, command)); err != nil {
		return err
	}
	for {
		t, err := g.next()
		switch {
		case err != nil:
			return err
		case t.ack == '+':
			return nil
		case t.ack == '-':
			return errno.Errorf(unix.EPROTO, "%.40q: the stub did not understand the packet", command)
		}
	}
}

// close ends the connection; the vCPUs stay as they are.
func (g *stub) close() {
	if g.closed {
		return
	}
	g.closed = true
	close(g.closing)
	g.wire.end()
	<-g.done
	g.wire.close()
}

// detach removes what a client has set and lets the vCPUs run.
func (g *stub) detach() error {
	return g.must("Qqemu.PhyMemMode:0", "D;1")
}
