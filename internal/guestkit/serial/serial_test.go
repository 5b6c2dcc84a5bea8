package serial

import (
	"bytes"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
)

// both runs the guest's end, which answers each message with itself, and gives the host's.
func both(t *testing.T) *Conn {
	t.Helper()
	h, g := net.Pipe()
	t.Cleanup(func() { h.Close() })
	go func() {
		defer g.Close()
		c := New(g, true)
		for {
			var req Request
			body, err := c.Receive(&req)
			if err != nil || c.Send(Answer{Error: req.Path, ID: req.ID}, body) != nil {
				return
			}
		}
	}()
	return New(h, false)
}

func TestMessages(t *testing.T) {
	c := both(t)
	noise := make([]byte, 100000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for n := 0; n <= len(noise); n = n*3/2 + 1 {
		for _, body := range [][]byte{noise[:n], bytes.Repeat([]byte("a"), n)} {
			path := strings.Repeat("p", n)
			if err := c.Send(Request{Op: "echo", Path: path, ID: n}, body); err != nil {
				t.Fatal(err)
			}
			var a Answer
			got, err := c.Receive(&a)
			if err != nil || a.Error != path || a.ID != n || !bytes.Equal(got, body) {
				t.Fatalf("%d bytes came back as %d, %d, %v", n, len(got), a.ID, err)
			}
		}
	}
}

// TestEdges: messages that end at, before and behind the end of a chunk.
func TestEdges(t *testing.T) {
	c := both(t)
	for n := 2*chunk - 80; n < 2*chunk+20; n++ {
		if err := c.Send(Request{Path: strings.Repeat("p", n)}, nil); err != nil {
			t.Fatal(err)
		}
		var a Answer
		if _, err := c.Receive(&a); err != nil || len(a.Error) != n {
			t.Fatalf("%d bytes came back as %d, %v", n, len(a.Error), err)
		}
	}
}

type script struct {
	*strings.Reader
}

func (script) Write(b []byte) (int, error) { return len(b), nil }

func FuzzReceive(f *testing.F) {
	f.Add("\x02\x00\x00\x00\x01\x00\x00\x00\x00{}x")
	f.Add("\x02\x00\x00\x00\x01\x00\x00\x00\x01{}x")
	f.Add("\xff\xff\xff\x00")
	f.Fuzz(func(t *testing.T, in string) {
		if len(in) > 3 && in[2] > 1 { // sizes within Max are believed: memory for tests
			return
		}
		var a Answer
		if body, err := New(script{strings.NewReader(in)}, true).Receive(&a); err == nil && len(body) > Max {
			t.Errorf("%d bytes", len(body))
		}
	})
}
