// Package asyncwriter writes to a file while its caller makes what comes next.
package asyncwriter

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrClosed says that a Writer was written to after Close.
var ErrClosed = errors.New("written to after Close")

// Writer collects what is written in buffers of one size. A goroutine of its own writes full
// ones, past the file cache where the file system can do that (O_DIRECT, open(2)): a long
// recording takes no memory from the rest of the machine, and no time to copy. Write waits only
// if all other buffers are still to be written. A Writer is for one goroutine at a time.
type Writer struct {
	f      *os.File
	direct bool          // O_DIRECT is set
	buf    []byte        // being filled; nil after Close
	full   chan []byte   // to be written, in order
	free   chan []byte   // written
	done   chan struct{} // closed when the goroutine has ended
	err    error         // the first error; to be read after done
}

// block divides what is written past the file cache, in bytes: more than any file system asks.
const block = 4096

// NewWriter starts to write to f, which must not be used otherwise until Close, by n buffers of
// size bytes. Sizes are rounded up to whole blocks, n to 1.
func NewWriter(f *os.File, size, n int) *Writer {
	n, size = max(n, 1), (max(size, 1)+block-1)&^(block-1)
	b := &Writer{f: f, full: make(chan []byte, n), free: make(chan []byte, n), done: make(chan struct{})}
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() { // of a pipe the flag means something else
		b.direct = setDirect(f, true) == nil
	}
	for range n {
		b.free <- make([]byte, 0, size) // objects of a page and more begin on one
	}
	b.buf = <-b.free
	go b.run()
	return b
}

// setDirect sets O_DIRECT or clears it.
func setDirect(f *os.File, on bool) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	flags &^= unix.O_DIRECT
	if on {
		flags |= unix.O_DIRECT
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags)
	return err
}

// run writes full buffers until there are no more. After an error it only gives them back.
func (b *Writer) run() {
	defer close(b.done)
	for buf := range b.full {
		if b.err == nil {
			b.err = b.write(buf)
		}
		b.free <- buf[:0]
	}
	if err := b.cached(); b.err == nil {
		b.err = err
	}
}

// write writes a buffer. The rest of a block goes through the cache, and all where the file
// system wants other sizes or addresses.
func (b *Writer) write(buf []byte) error {
	n, err := 0, error(nil)
	if b.direct && len(buf)%block == 0 {
		if n, err = b.f.Write(buf); !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	if err := b.cached(); err != nil {
		return err
	}
	_, err = b.f.Write(buf[n:])
	return err
}

// cached has what follows go through the file cache.
func (b *Writer) cached() error {
	if !b.direct {
		return nil
	}
	b.direct = false
	return setDirect(b.f, false)
}

// Write takes all of p. Errors of the file are Close's to tell.
func (b *Writer) Write(p []byte) (n int, err error) {
	if b.buf == nil {
		return 0, ErrClosed
	}
	for {
		k := min(len(p)-n, cap(b.buf)-len(b.buf))
		b.buf = append(b.buf, p[n:n+k]...)
		n += k
		if n == len(p) {
			return n, nil
		}
		b.full <- b.buf
		b.buf = <-b.free
	}
}

// Close waits until all is written, and gives the first error; what came behind it was not
// written. The file stays open.
func (b *Writer) Close() error {
	if b.buf != nil {
		b.full <- b.buf
		b.buf = nil
		close(b.full)
	}
	<-b.done
	return b.err
}
