// Package serial is how a program on the host talks to the agent in its guest: messages over a
// serial line, each with a head in JSON and a body of bytes.
//
//	uint32 size of the head, uint32 size of the body as it follows, byte 1 if it is gzip'd
//	the head, the body
//
// (integers little-endian). The line loses what the guest does not take in time, so all that
// the host sends goes in chunks, and each waits for an acknowledgement, one byte.
package serial

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

const (
	chunk = 3072 // bytes; the kernel's line discipline holds 4096
	// Max bounds a head and a body, in bytes.
	Max = 64 << 20
	// worth is from where a body is compressed.
	worth = 1024
	ack   = 6
)

// Request is what the agent is asked to do; Body goes with it.
type Request struct {
	Op    string   // write, read, list, run, spawn, end, reboot
	Path  string   `json:",omitempty"`
	Flags int      `json:",omitempty"` // write: of open(2)
	Mode  uint32   `json:",omitempty"` // write: of a new file
	Args  []string `json:",omitempty"` // run, spawn
	ID    int      `json:",omitempty"` // end: what spawn has answered
}

// Answer is what the agent answers; a file's content or a command's standard output is the
// body.
type Answer struct {
	Ready  bool     `json:",omitempty"` // the agent has started
	Errno  int      `json:",omitempty"` // of the system call that failed
	Error  string   `json:",omitempty"` // what failed
	Names  []string `json:",omitempty"` // list
	Status int      `json:",omitempty"` // run: exit status, 128+N for signal N
	Stderr []byte   `json:",omitempty"` // run
	ID     int      `json:",omitempty"` // spawn
}

// Conn is one end of the line.
type Conn struct {
	rw    io.ReadWriter
	r     *bufio.Reader
	guest bool
}

// New makes an end of the line; guest says which.
func New(rw io.ReadWriter, guest bool) *Conn {
	return &Conn{rw: rw, r: bufio.NewReader(rw), guest: guest}
}

// Send sends a message.
func (c *Conn) Send(head any, body []byte) error {
	h, err := json.Marshal(head)
	if err != nil {
		return err
	}
	zipped := byte(0)
	if len(body) >= worth {
		if body, err = compress(body); err != nil {
			return err
		}
		zipped = 1
	}
	if len(h) > Max || len(body) > Max {
		return fmt.Errorf("serial line: a message of %d and %d bytes is too large", len(h), len(body))
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(h)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = append(append(append(b, zipped), h...), body...)
	if c.guest {
		_, err = c.rw.Write(b)
		return err
	}
	return c.feed(b)
}

func compress(b []byte) ([]byte, error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// feed sends bytes in chunks, each acknowledged.
func (c *Conn) feed(b []byte) error {
	for len(b) > 0 {
		n := min(chunk, len(b))
		if _, err := c.rw.Write(b[:n]); err != nil {
			return err
		}
		a, err := c.r.ReadByte()
		if err != nil {
			return err
		}
		if a != ack {
			return fmt.Errorf("serial line: %#x instead of an acknowledgement: the agent was started again", a)
		}
		b = b[n:]
	}
	return nil
}

const headSize = 9

// Receive takes a message, and decodes its head.
func (c *Conn) Receive(head any) (body []byte, err error) {
	in := &taker{c: c}
	var sizes [headSize]byte
	if err := in.take(sizes[:], 0); err != nil {
		return nil, err
	}
	hn, bn := binary.LittleEndian.Uint32(sizes[:]), binary.LittleEndian.Uint32(sizes[4:])
	if hn > Max || bn > Max || sizes[8] > 1 {
		return nil, fmt.Errorf("serial line: a message of %d and %d bytes, kind %d: it is out of step", hn, bn, sizes[8])
	}
	b := make([]byte, hn+bn)
	if err := in.take(b, headSize+int(hn+bn)); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b[:hn], head); err != nil {
		return nil, fmt.Errorf("serial line: %w", err)
	}
	if body = b[hn:]; sizes[8] == 1 {
		return expand(body)
	}
	return body, nil
}

func expand(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(z, Max+1))
	if len(out) > Max {
		return nil, fmt.Errorf("serial line: a body of more than %d bytes", Max)
	}
	return out, err
}

// taker takes a message, and in the guest acknowledges its chunks.
type taker struct {
	c    *Conn
	done int
}

// take fills b. total is the message's size, 0 while that is not known: then it is more than
// len(b).
func (t *taker) take(b []byte, total int) error {
	for len(b) > 0 {
		n := min(len(b), chunk-t.done%chunk)
		if _, err := io.ReadFull(t.c.r, b[:n]); err != nil {
			return err
		}
		b = b[n:]
		t.done += n
		if t.c.guest && (t.done%chunk == 0 || t.done == total) {
			if _, err := t.c.rw.Write([]byte{ack}); err != nil {
				return err
			}
		}
	}
	return nil
}
