package tracefile

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/trace"
)

// Handle is an open file. It may be used by several goroutines.
type Handle struct {
	f     *File
	pipe  *trace.Pipe
	text  whole
	close func()

	cached struct { // what Page gave last
		mu     sync.Mutex
		offset int64
		page   []byte
	}
}

// Open opens a file that is no directory, until Close. ENODEV: its instance has just been removed.
func (f *File) Open() (*Handle, error) {
	release, err := f.in.Hold()
	if err != nil {
		return nil, err
	}
	h := &Handle{f: f, close: sync.OnceFunc(func() {
		if f.closed != nil {
			f.closed()
		}
		release()
	})}
	if f.pipe != nil {
		h.pipe = f.pipe()
	}
	return h, nil
}

// Close ends the use of the file. It may be called again.
func (h *Handle) Close() { h.close() }

// Streams says whether reading the file waits for text that comes, and never begins anew.
func (f *File) Streams() bool { return f.pipe != nil }

// Streams is that of the file.
func (h *Handle) Streams() bool { return h.pipe != nil }

// Paged says whether the file is a stream in binary form without end, whose pages Page gives.
func (f *File) Paged() bool { return f.pages }

// Stream writes what a file that Streams gives, until ctx ends, or w or flush fails: see trace.Pipe.WriteTo.
func (h *Handle) Stream(ctx context.Context, w io.Writer, flush func() error) error {
	return h.pipe.WriteTo(ctx, w, flush)
}

// Read gives up to n bytes from an offset on; none at the end. The text is made anew when it is read from its start. EINVAL: the file
// can not be read; ENODEV: the event that it tells of has gone. A stream's text is what comes next, whatever the offset; EAGAIN: there is none
// now, and it is not to wait.
func (h *Handle) Read(ctx context.Context, offset int64, n int, wait bool) ([]byte, error) {
	if h.pipe != nil {
		b, err := h.pipe.Read(ctx, n, wait)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return b, err
	}
	if h.f.read == nil {
		return nil, unix.EINVAL
	}
	return h.text.read(h.f, offset, n)
}

// Page gives what the page cache gets at an offset, for splice(2) and sendfile(2): of a stream in binary form the next page or, at the offset of the last
// one, that again. Errors are those of trace.Pipe.Page; EINVAL: it is no such stream, since the cache holds no text that is made anew each
// time, and none that is read once.
func (h *Handle) Page(offset int64, n int) ([]byte, error) {
	if !h.f.pages || n != trace.PageSize {
		return nil, unix.EINVAL
	}
	h.cached.mu.Lock()
	defer h.cached.mu.Unlock()
	if h.cached.page != nil && h.cached.offset == offset {
		return h.cached.page, nil
	}
	b, err := h.pipe.Page()
	if err != nil {
		return nil, err
	}
	h.cached.offset, h.cached.page = offset, b
	return b, nil
}

// Write takes what one write(2) of a thread gives, wherever, and tells how much of it was taken. EINVAL: the file can not be written.
func (h *Handle) Write(tid int, text string) (int, error) {
	switch {
	case h.f.mark != nil:
		return h.f.mark(tid, text)
	case h.f.write == nil:
		return 0, unix.EINVAL
	}
	return len(text), h.f.whole(func() error { return h.f.write(text) })
}

// Ready says whether Read would not wait; if it would, more is closed when that may have changed.
func (h *Handle) Ready() (ready bool, more <-chan struct{}) {
	if h.pipe == nil {
		return true, nil
	}
	return h.pipe.Ready()
}

// Text gives the whole text of a file that is no stream.
func (f *File) Text() (string, error) {
	if f.read == nil {
		return "", unix.EINVAL
	}
	return f.read()
}

// Truncate is what opening with O_TRUNC does.
func (f *File) Truncate() error {
	if f.truncate == nil {
		return nil
	}
	return f.truncate()
}

// Entries lists a directory. ENOTDIR: it is none.
func (f *File) Entries() ([]Entry, error) {
	if f.entries == nil {
		return nil, unix.ENOTDIR
	}
	return f.entries()
}

// Readable and Writable say what can be done with the file.
func (f *File) Readable() bool { return f.read != nil || f.pipe != nil }

// Writable says whether the file takes text.
func (f *File) Writable() bool { return f.write != nil || f.mark != nil }

// whole does something with a file that was there when it was opened. ENODEV: the event that it is about has gone, before or meanwhile.
func (f *File) whole(do func() error) error {
	gone := func() bool { return f.gone != nil && f.gone() }
	if gone() {
		return errGone
	}
	err := do()
	if err != nil && gone() {
		return errGone
	}
	return err
}

var errGone = errno.Errorf(unix.ENODEV, "the event has been deleted")

// whole is the text of a file as it was when its start was read.
type whole struct {
	mu   sync.Mutex
	text string
	made bool
}

func (w *whole) read(f *File, offset int64, n int) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if offset == 0 || !w.made {
		err := f.whole(func() (err error) {
			w.text, err = f.read()
			return err
		})
		if err != nil {
			return nil, err
		}
		w.made = true
	}
	if offset >= int64(len(w.text)) {
		return nil, nil
	}
	rest := w.text[offset:]
	return []byte(rest[:min(n, len(rest))]), nil
}
