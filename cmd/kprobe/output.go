package main

import (
	"bufio"
	"fmt"
	"os"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"
)

// lineOptions says what is printed, and where.
type lineOptions struct {
	con    *console
	path   string // "": stdout
	format string // text or json
	stat   bool   // nothing but the summary
	count  uint64 // lines after which the trace ends; 0: it does not
}

// lines prints hits. Its methods are called by one goroutine at a time, but for noReader.
type lines struct {
	lineOptions
	file  *os.File
	name  string
	out   *bufio.Writer
	print hit.Printer
	buf   []byte
	n     uint64
	err   error
	full  chan struct{} // closed once enough was printed, or printing failed
	ended bool          // full is closed
}

// newLines opens the output.
func newLines(o lineOptions) (*lines, error) {
	l := &lines{lineOptions: o, file: o.con.stdout, name: stdout.name, full: make(chan struct{})}
	if o.path != "" {
		file, err := os.Create(o.con.path(o.path))
		if err != nil {
			return nil, o.con.pathError(err, o.path)
		}
		l.file, l.name = file, o.path
	}
	l.out = bufio.NewWriterSize(l.file, 256<<10)
	return l, nil
}

// flush lets a reader of the output see what there is.
func (l *lines) flush() {
	if l.err == nil {
		l.failed(l.out.Flush())
	}
}

// failed ends the trace if the output could not be written.
func (l *lines) failed(err error) {
	if err != nil {
		l.err = writeError(l.name, err)
		l.end()
	}
}

func (l *lines) end() {
	if !l.ended {
		l.ended = true
		close(l.full)
	}
}

// hit writes one hit.
func (l *lines) hit(h *hit.Hit) { l.write(h, l.print.Text, l.print.JSON) }

// stack writes the stack of a hit, without the hit.
func (l *lines) stack(h *hit.Hit) { l.write(h, l.print.Stack, l.print.StackJSON) }

// lost writes that hits of a CPU were lost here.
func (l *lines) lost(lost hit.Loss) {
	switch {
	case l.stat, l.count > 0 && l.n >= l.count, l.err != nil:
		return
	case l.format == "json":
		_, err := fmt.Fprintf(l.out, "{\"cpu\":%d,\"lost\":%d}\n", lost.CPU, lost.Hits)
		l.failed(err)
		return
	}
	_, err := l.out.WriteString(hit.LostLine(lost))
	l.failed(err)
}

// write writes what is shown of a hit.
func (l *lines) write(h *hit.Hit, text, json func([]byte, *hit.Hit) []byte) {
	if l.count > 0 && l.n >= l.count || l.err != nil {
		return
	}
	l.n++
	if !l.stat {
		if l.format == "json" {
			l.buf = json(l.buf[:0], h)
		} else {
			l.buf = text(l.buf[:0], h)
		}
		_, err := l.out.Write(l.buf)
		l.failed(err)
	}
	if l.n == l.count {
		l.end()
	}
}

// noReader says that the output is a pipe, a socket or a terminal and nobody has its other end
// any more. A program that prints nothing would not learn it from a write.
func (l *lines) noReader() bool {
	conn, err := l.file.SyscallConn()
	if err != nil || l.stat {
		return false
	}
	gone := false
	_ = conn.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return gone
}

// finish writes out what is buffered and closes a file. It gives the first error of all.
func (l *lines) finish() error {
	l.flush()
	if l.err == nil && l.noReader() {
		l.failed(unix.EPIPE)
	}
	if l.file != l.con.stdout {
		if err := l.file.Close(); l.err == nil {
			l.failed(err)
		}
	}
	return l.err
}
