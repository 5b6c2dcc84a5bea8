package qemu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

const (
	// greeting is how long QEMU may take to greet a client of its monitor. It greets one
	// at a time.
	greeting = 5 * time.Second
	// patience is how long QEMU may take to answer: it does so between other work, and
	// machines that run tests are slow at times.
	patience = 30 * time.Second
	// maxMessage bounds a message of the monitor, in bytes.
	maxMessage = 16 << 20
)

// message is a message of QMP (QEMU's docs/interop/qmp-spec): greeting, answer or event.
type message struct {
	QMP    *json.RawMessage `json:"QMP"`
	Return json.RawMessage  `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
	ID    *uint64         `json:"id"`
}

// monitor is a client of QMP.
type monitor struct {
	path    string
	conn    net.Conn
	onEvent func(name string)

	mu      sync.Mutex // one command at a time
	id      uint64
	answers chan message  // unclaimed answers; the reader never waits for who reads them
	done    chan struct{} // closed when the connection is gone
}

// dialMonitor connects to the monitor and enables its commands. onEvent is called in order
// for each event, and must not wait. wait is how long QEMU may take to greet.
func dialMonitor(path string, wait time.Duration, onEvent func(name string)) (*monitor, error) {
	end := time.Now().Add(wait)
	conn, err := net.DialTimeout("unix", path, patience)
	for errors.Is(err, unix.EAGAIN) && time.Now().Before(end) { // QEMU holds only a few that wait
		time.Sleep(20 * time.Millisecond)
		conn, err = net.DialTimeout("unix", path, patience)
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil, held(path, wait)
	}
	if err != nil {
		return nil, fmt.Errorf("monitor of QEMU: %w", err)
	}
	m := &monitor{path: path, conn: conn, onEvent: onEvent, answers: make(chan message, 1), done: make(chan struct{})}
	hello := make(chan struct{})
	go m.read(hello)
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-hello:
	case <-m.done:
		return nil, fmt.Errorf("monitor of QEMU at %s: %w", path, ErrGone)
	case <-timer.C:
		conn.Close()
		return nil, held(path, wait)
	}
	if err := m.run("qmp_capabilities", nil, nil); err != nil {
		conn.Close()
		return nil, err
	}
	return m, nil
}

func held(path string, wait time.Duration) error {
	return errno.Errorf(unix.EBUSY, "monitor of QEMU at %s: no greeting within %v: another client holds it, or no QMP is spoken there; give QEMU another -qmp for us", path, wait)
}

// read takes the connection apart into messages, until it ends.
func (m *monitor) read(hello chan<- struct{}) {
	defer close(m.done)
	defer m.conn.Close()
	sc := bufio.NewScanner(m.conn)
	sc.Buffer(nil, maxMessage)
	for sc.Scan() {
		var msg message
		if json.Unmarshal(sc.Bytes(), &msg) != nil {
			return
		}
		switch {
		case msg.QMP != nil && hello != nil:
			close(hello)
			hello = nil
		case msg.Event != "":
			m.onEvent(msg.Event)
		case msg.ID != nil || msg.Error != nil:
			m.answer(msg)
		}
	}
}

// answer keeps the newest answer: an older one that is still there came too late.
func (m *monitor) answer(msg message) {
	for {
		select {
		case m.answers <- msg:
			return
		default:
		}
		select {
		case <-m.answers:
		default:
		}
	}
}

// run has a command executed and decodes what it returns into out, nil for nothing.
func (m *monitor) run(command string, args map[string]any, out any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id++
	req := map[string]any{"execute": command, "id": m.id}
	if args != nil {
		req["arguments"] = args
	}
	b, err := json.Marshal(req)
	if err != nil {
		return err
	}
	err = m.conn.SetWriteDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = m.conn.Write(append(b, '\n'))
	}
	if errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = ErrGone // the reader has met the end, and closed it
	}
	if err != nil {
		return fmt.Errorf("monitor of QEMU: %s: %w", command, err)
	}
	msg, err := m.await(m.id)
	if err != nil {
		return fmt.Errorf("monitor of QEMU: %s: %w", command, err)
	}
	if msg.Error != nil {
		return errno.Errorf(unix.EIO, "monitor of QEMU: %s: %s (%s)", command, msg.Error.Desc, msg.Error.Class)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(msg.Return, out); err != nil {
		return errno.Errorf(unix.EPROTO, "monitor of QEMU: %s: answer %.200q: %w", command, msg.Return, err)
	}
	return nil
}

// await takes the answer to command id; those to earlier commands came too late.
func (m *monitor) await(id uint64) (message, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case msg := <-m.answers:
			if msg.ID == nil || *msg.ID == id {
				return msg, nil
			}
		case <-m.done:
			select {
			case msg := <-m.answers:
				if msg.ID != nil && *msg.ID == id {
					return msg, nil
				}
			default:
			}
			return message{}, ErrGone
		case <-timer.C:
			return message{}, errno.Errorf(unix.ETIMEDOUT, "no answer within %v", patience)
		}
	}
}

// human runs a command of the human monitor.
func (m *monitor) human(line string) (string, error) {
	var out string
	err := m.run("human-monitor-command", map[string]any{"command-line": line}, &out)
	return out, err
}

// property reads a property of a QEMU object.
func (m *monitor) property(object, name string, out any) error {
	return m.run("qom-get", map[string]any{"path": object, "property": name}, out)
}

// running tells whether the vCPUs run, and QEMU's word for the state.
func (m *monitor) running() (bool, string, error) {
	var st struct {
		Running bool   `json:"running"`
		Status  string `json:"status"`
	}
	err := m.run("query-status", nil, &st)
	return st.Running, st.Status, err
}

// close ends the connection and waits for its reader.
func (m *monitor) close() {
	m.conn.Close()
	<-m.done
}
