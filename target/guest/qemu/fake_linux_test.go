package qemu

import (
	"bufio"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serve listens at a socket of the test's and gives each connection to f, until the test
// ends.
func serve(t testing.TB, f func(net.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
	return path
}

// say answers each line with the next of the given ones.
func say(lines ...string) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		for _, l := range lines {
			if _, err := io.WriteString(c, l+"\n"); err != nil {
				return
			}
			if _, err := r.ReadString('\n'); err != nil {
				return
			}
		}
	}
}

const hello = `{"QMP": {"version": {}, "capabilities": []}}`

func TestMonitor(t *testing.T) {
	path := serve(t, say(hello, `{"return": {}, "id": 1}`,
		`{"event": "RESET", "data": {}}`+"\n"+`{"return": {}, "id": 1}`+"\n"+`{"return": {"running": true, "status": "running"}, "id": 2}`,
		`{"error": {"class": "CommandNotFound", "desc": "no such command"}, "id": 3}`,
		`{"return": 7, "id": 4}`))
	var events []string
	m, err := dialMonitor(path, time.Minute, func(e string) { events = append(events, e) })
	if err != nil {
		t.Fatal(err)
	}
	if ok, status, err := m.running(); !ok || status != "running" || err != nil {
		t.Errorf("running: %v, %s, %v", ok, status, err)
	}
	if err := m.run("nosuch", nil, nil); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "no such command") {
		t.Errorf("an error of QEMU: %v", err)
	}
	if _, err := m.human("info"); !errors.Is(err, unix.EPROTO) {
		t.Errorf("a number instead of text: %v", err)
	}
	if err := m.run("query-status", nil, nil); !errors.Is(err, ErrGone) || !errors.Is(err, unix.ESRCH) {
		t.Errorf("after the end: %v, want ErrGone", err)
	}
	m.close()
	if len(events) != 1 || events[0] != "RESET" {
		t.Errorf("events %q", events)
	}
}

func TestMonitorSilent(t *testing.T) {
	path := serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	if _, err := dialMonitor(path, 10*time.Millisecond, nil); !errors.Is(err, unix.EBUSY) {
		t.Errorf("no greeting: %v, want EBUSY", err)
	}
	for _, said := range []string{"", "no JSON\n", "{}\n", "[]\n"} {
		path := serve(t, func(c net.Conn) { _, _ = io.WriteString(c, said) })
		if _, err := dialMonitor(path, time.Minute, nil); !errors.Is(err, ErrGone) {
			t.Errorf("a server that says %q and goes: %v, want ErrGone", said, err)
		}
	}
}

func TestWire(t *testing.T) {
	if _, err := dialWire("/"+strings.Repeat("x", 107), time.Second); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("a path that is too long: %v", err)
	}
	if _, err := dialWire(t.TempDir()+"/none", time.Second); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
}

// answers is a stub that knows the answers to some commands and gives others none. At bye it ends.
func answers(known map[string]string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, "$T02thread:01;#04")
		r := bufio.NewReader(c)
		for {
			tok, err := readToken(r)
			if err != nil {
				return
			}
			if tok.ack != 0 {
				continue
			}
			name, _, _ := strings.Cut(tok.data, ":")
			if name == "bye" {
				return
			}
			if _, err := c.Write(append([]byte{'+'}, appendPacket(nil, known[name])...)); err != nil {
				return
			}
		}
	}
}

func TestStub(t *testing.T) {
	good := map[string]string{
		"qSupported": "PacketSize=1000;multiprocess+", "?": "T05thread:01;", "Qqemu.PhyMemMode": "OK",
		"qfThreadInfo": "m01,02", "qsThreadInfo": "l", "D;1": "OK",
	}
	with := func(key, value string) map[string]string {
		m := make(map[string]string)
		for k, v := range good {
			m[k] = v
		}
		m[key] = value
		return m
	}
	g, err := dialStub(serve(t, answers(good)))
	if err != nil {
		t.Fatal(err)
	}
	if len(g.threads) != 2 || g.size != 0x1000 {
		t.Errorf("threads %q, packets of %d", g.threads, g.size)
	}
	if err := g.must("Z0,1,1"); !errors.Is(err, unix.EIO) {
		t.Errorf("a command that the stub does not know: %v", err)
	}
	if err := g.detach(); err != nil {
		t.Error(err)
	}
	g.close()
	g.close()
	if _, err := g.ask("g"); !errors.Is(err, errGivenUp) || errors.Is(err, ErrGone) {
		t.Errorf("after the end of the connection: %v; QEMU has not ended", err)
	}
	if g, err = dialStub(serve(t, answers(good))); err != nil {
		t.Fatal(err)
	}
	if _, err := g.ask("bye"); !errors.Is(err, ErrGone) {
		t.Errorf("a stub that ends: %v, want ErrGone", err)
	}
	g.close()
	for want, known := range map[error]map[string]string{
		unix.EOPNOTSUPP: with("Qqemu.PhyMemMode", ""),
		unix.EPROTO:     with("qfThreadInfo", "mx"),
	} {
		if g, err := dialStub(serve(t, answers(known))); !errors.Is(err, want) {
			t.Errorf("%v: %v, %v; want %v", known, g, err, want)
		}
	}
	if _, err := dialStub(serve(t, answers(with("qsThreadInfo", "m01")))); !errors.Is(err, unix.EPROTO) {
		t.Errorf("threads without end: %v, want EPROTO", err)
	}
}

// FuzzStub: whatever a stub says, its client comes to an end with an error or without.
func FuzzStub(f *testing.F) {
	f.Add("+$PacketSize=1000#4f+$T05#b9+$OK#9a+$#00+$m01#ce+$l#6c")
	f.Add("$T02thread:01;#04+$}#7d")
	f.Add("+-$#00")
	f.Fuzz(func(t *testing.T, said string) {
		path := serve(t, func(c net.Conn) {
			_, _ = io.WriteString(c, said)
			_ = c.(*net.UnixConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		})
		g, err := dialStub(path)
		if err != nil {
			return
		}
		defer g.close()
		if len(g.threads) == 0 || len(g.threads) > maxThreads || g.size < 512 || g.size > maxPacket {
			t.Errorf("threads %q, packets of %d", g.threads, g.size)
		}
		_, _ = g.interrupt()
		_ = g.resume("c")
	})
}

// FuzzMonitor: the same for the monitor.
func FuzzMonitor(f *testing.F) {
	f.Add(hello + "\n" + `{"return": {}, "id": 1}` + "\n" + `{"return": {"running": true}, "id": 2}` + "\n")
	f.Add(hello + "\n" + `{"error": {}, "id": 1}` + "\n")
	f.Add(`{"event": "RESET"}` + "\n" + hello + hello)
	f.Fuzz(func(t *testing.T, said string) {
		path := serve(t, func(c net.Conn) {
			_, _ = io.WriteString(c, said)
			_ = c.(*net.UnixConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		})
		m, err := dialMonitor(path, time.Minute, func(string) {})
		if err != nil {
			return
		}
		_, _, _ = m.running()
		m.close()
	})
}
