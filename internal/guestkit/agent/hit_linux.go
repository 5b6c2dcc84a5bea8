package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Counts is what Hit has counted.
type Counts struct {
	Calls, OK, Failed uint64
	Bytes             uint64 // sum of what was transferred
	Errno             int    // the last one
	TID               int    // of the thread that made the calls
}

func (c *Counts) note(n int, err error) {
	c.Calls++
	if err == nil {
		c.OK++
		c.Bytes += uint64(n)
		return
	}
	c.Failed++
	var e syscall.Errno
	if errors.As(err, &e) {
		c.Errno = int(e)
	}
}

// Hit makes N system calls of one kind from a thread that makes no others of that kind, and
// writes what it counted as a line of JSON. Its arguments are
//
//	open N CPU PATH FLAGS MODE    openat of PATH; a file that opens is closed
//	read N CPU                    up to a page of /dev/zero, each a byte longer
//	tcp N CPU                     N messages of 64 bytes through loopback, each read
func Hit(args []string, w io.Writer) error {
	if len(args) < 3 {
		return errno.Errorf(unix.EINVAL, "hit: WHAT N CPU are missing")
	}
	n, err1 := strconv.ParseUint(args[1], 10, 32)
	cpu, err2 := strconv.ParseUint(args[2], 10, 8)
	if err := errors.Join(err1, err2); err != nil {
		return errno.Errorf(unix.EINVAL, "hit: %w", err)
	}
	loop, err := loopOf(args[0], args[3:])
	if err != nil {
		return err
	}
	c := new(Counts)
	err = onThread(func() error {
		var set unix.CPUSet
		set.Set(int(cpu))
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		c.TID = unix.Gettid()
		return loop(int(n), c)
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(c)
}

// onThread runs f on a thread of its own, not the process's first: that one's start has made
// system calls too.
func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never back: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- onThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}

func loopOf(what string, args []string) (func(n int, c *Counts) error, error) {
	switch {
	case what == "open" && len(args) == 3:
		flags, err1 := strconv.ParseInt(args[1], 0, 32)
		mode, err2 := strconv.ParseUint(args[2], 0, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, errno.Errorf(unix.EINVAL, "hit open: %w", err)
		}
		return func(n int, c *Counts) error { return opens(n, c, args[0], int(flags), uint32(mode)) }, nil
	case what == "read" && len(args) == 0:
		return reads, nil
	case what == "tcp" && len(args) == 0:
		return messages, nil
	}
	return nil, errno.Errorf(unix.EINVAL, "hit: %s %q is not known", what, args)
}

func opens(n int, c *Counts, path string, flags int, mode uint32) error {
	for range n {
		fd, err := unix.Openat(unix.AT_FDCWD, path, flags, mode)
		c.note(0, err)
		if err == nil {
			if err := unix.Close(fd); err != nil {
				return err
			}
		}
	}
	return nil
}

func reads(n int, c *Counts) error {
	fd, err := unix.Open("/dev/zero", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 4096)
	for i := range n {
		c.note(unix.Read(fd, b[:1+i%len(b)]))
	}
	return nil
}

const messageSize = 64 // bytes

func messages(n int, c *Counts) error {
	in, out, err := pair()
	if err != nil {
		return err
	}
	defer unix.Close(in)
	defer unix.Close(out)
	b := make([]byte, messageSize)
	for range n {
		c.note(unix.Write(out, b))
		for got := 0; got < len(b); {
			k, err := unix.Read(in, b[got:])
			if err == nil && k == 0 {
				err = unix.EPIPE
			}
			if err != nil {
				return fmt.Errorf("hit tcp: %w", err)
			}
			got += k
		}
	}
	return nil
}

// pair makes a TCP connection through loopback.
func pair() (in, out int, err error) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, 0, err
	}
	if err := unix.Listen(l, 1); err != nil {
		return 0, 0, err
	}
	at, err := unix.Getsockname(l)
	if err != nil {
		return 0, 0, err
	}
	if out, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
		return 0, 0, err
	}
	if err = unix.Connect(out, at); err == nil {
		in, _, err = unix.Accept(l)
	}
	if err != nil {
		err = errors.Join(err, unix.Close(out))
	}
	return in, out, err
}
