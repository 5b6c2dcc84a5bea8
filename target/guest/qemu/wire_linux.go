package qemu

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// wire is a connected unix socket whose reader waits in the system call itself. QEMU answers
// each small packet by itself, while all vCPUs stand: a thousand of them take a quarter of
// the time that they take through the runtime's poller.
type wire struct{ fd int }

// dialWire connects to the socket at path, within wait; no write takes longer either.
func dialWire(path string, wait time.Duration) (*wire, error) {
	if len(path) >= maxSocketPath {
		return nil, errno.Errorf(unix.ENAMETOOLONG, "socket %s: a path of a socket has at most %d bytes", path, maxSocketPath-1)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	w := &wire{fd}
	tv := unix.NsecToTimeval(wait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		w.close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := retry(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) }); err != nil {
		w.close()
		return nil, fmt.Errorf("connection to %s: %w", path, err)
	}
	return w, nil
}

// maxSocketPath is the size of sun_path (unix(7)), with the 0 at its end.
const maxSocketPath = 108

// retry calls f again as long as a signal interrupts it.
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Read implements io.Reader. It waits without limit, until end is called.
func (w *wire) Read(b []byte) (n int, err error) {
	err = retry(func() error {
		n, err = unix.Read(w.fd, b)
		return err
	})
	if err == nil && n == 0 && len(b) > 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// Write implements io.Writer.
func (w *wire) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		var n int
		err := retry(func() (err error) {
			n, err = unix.SendmsgN(w.fd, b[done:], nil, nil, unix.MSG_NOSIGNAL)
			return err
		})
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// end ends the connection: a Read that waits returns.
func (w *wire) end() { _ = unix.Shutdown(w.fd, unix.SHUT_RDWR) }

// close gives the socket back. Nobody may read or write any more.
func (w *wire) close() { _ = unix.Close(w.fd) }
