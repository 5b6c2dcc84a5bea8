package guestkit

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/guestkit/serial"
)

// watched counts how often a connection's wait for something to read begins anew, and what is sent.
type watched struct {
	net.Conn
	mu           sync.Mutex
	reads, sends int
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.sends++
	w.mu.Unlock()
	return w.Conn.Write(b)
}

func (w *watched) SetReadDeadline(at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	return w.Conn.SetReadDeadline(at)
}

// TestLinePatience: the guest may take as long as it likes for a message, as long as it takes each chunk
// of it.
func TestLinePatience(t *testing.T) {
	host, guest := net.Pipe()
	defer host.Close()
	w := &watched{Conn: host}
	l := newLine(w, time.Minute)
	got := make(chan []byte, 1)
	go func() {
		c := serial.New(guest, true)
		var req serial.Request
		body, err := c.Receive(&req)
		if err == nil {
			err = c.Send(serial.Answer{ID: 7}, nil)
		}
		if err != nil {
			guest.Close()
		}
		got <- body
	}()
	body := make([]byte, 100_000)
	rand.Read(body)
	a, _, err := l.Ask(&serial.Request{Op: "write"}, body)
	if err != nil || a.ID != 7 || !bytes.Equal(<-got, body) {
		t.Fatalf("%+v, %v", a, err)
	}
	const chunks = 100_000 / 3072
	if w.reads < chunks {
		t.Errorf("the wait began anew %d times for %d chunks", w.reads, chunks)
	}
}

// TestLineOutOfStep: behind a request that the guest took a part of, nothing more is sent.
func TestLineOutOfStep(t *testing.T) {
	host, guest := net.Pipe()
	defer host.Close()
	w := &watched{Conn: host}
	l := newLine(w, time.Millisecond)
	if _, _, err := l.Ask(&serial.Request{Op: "run"}, nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a guest that does not answer: %v", err)
	}
	go io.Copy(io.Discard, guest) // what comes now would be taken
	_, _, err := l.Ask(&serial.Request{Op: "run"}, nil)
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(l.Send(&serial.Request{Op: "reboot"}, nil), os.ErrDeadlineExceeded) {
		t.Errorf("a request behind one that failed: %v, want the error of the first", err)
	}
	if w.sends != 1 {
		t.Errorf("%d messages sent, of which the first failed", w.sends)
	}
}
