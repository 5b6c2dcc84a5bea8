package qemu

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

var (
	// ErrHeld says that another engine holds the guest: EBUSY.
	ErrHeld = errno.Errorf(unix.EBUSY, "another kprobe holds the guest: one at a time may")
	// ErrGone says that QEMU has ended, or somebody ends it: ESRCH.
	ErrGone = errno.Errorf(unix.ESRCH, "QEMU has closed the connection")
	// errGivenUp says that the gdb stub is not talked to any more, though QEMU runs: EIO.
	errGivenUp = errno.Errorf(unix.EIO, "the connection was given up after an error: to go on, end this kprobe and start another")
	// ErrPaused says that whoever owns the machine has stopped it: EAGAIN.
	ErrPaused = errno.Errorf(unix.EAGAIN, "the guest is paused, and not by us: let it run first (QMP cont)")
)
