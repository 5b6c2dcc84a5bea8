package self

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
)

// claim is what tells others that this process probes itself: the lock of a holder, and a mapping
// of a page that nobody reads, whose name other processes see.
type claim struct {
	lock   *os.File
	marker uint64
}

// takeClaim makes this engine the one that patches the process's code. The error is an EBUSY that
// says who does instead: another process, another engine of this one (another copy of this package,
// also in a plugin or a shared library), or a tracer that was killed.
func takeClaim() (*claim, error) {
	c := &claim{}
	if err := c.take(); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

func (c *claim) take() error {
	f, err := os.Open("/proc/self/" + procfs.HoldFile)
	if err != nil {
		return fmt.Errorf("lock of the own process: %w", err)
	}
	pid, err := procfs.Hold(f)
	switch {
	case err == nil:
		c.lock = f
	case errors.Is(err, procfs.ErrTaken):
		return errors.Join(errHeld(pid), f.Close())
	default:
		return errors.Join(fmt.Errorf("lock of the own process: %w", err), f.Close())
	}
	// First our mapping, then the look at others': who comes now does it in the same order.
	if c.marker, err = mapMarker(); err != nil {
		return err
	}
	return noTracer()
}

// errHeld says who holds the process instead of this engine.
func errHeld(pid int) error {
	if pid == os.Getpid() {
		return errno.Errorf(unix.EBUSY, "process %d probes itself already by another copy of package kprobes.dev/kprobes (in a plugin, a shared library, a vendored copy): use that, or close its registry first", pid)
	}
	return errno.Errorf(unix.EBUSY, "process %d is probed by another, which holds it: %v: register again when that has ended", os.Getpid(), procfs.NewHolder(pid))
}

// noTracer is an EBUSY if another process has put probes into this one. Its engine does not see our
// lock, or was killed.
func noTracer() error {
	maps, err := procfs.MapsOf("/proc/self")
	if err != nil {
		return err
	}
	for _, m := range maps {
		if strings.HasPrefix(m.Path, "/memfd:"+procfs.TracerMap) {
			return errno.Errorf(unix.EBUSY, "process %d holds probes of a tracer that was killed, or that runs in another pid namespace: take them out (kprobe detach -p %d) and register again", os.Getpid(), os.Getpid())
		}
	}
	return nil
}

// mapMarker maps a page of a memory file, which has its name in /proc/PID/maps.
func mapMarker() (uint64, error) {
	fd, err := unix.MemfdCreate(procfs.OwnMap, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(procfs.OwnMap, unix.MFD_CLOEXEC) // before Linux 6.3
	}
	if err != nil {
		return 0, fmt.Errorf("memory file: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, markerSize); err != nil {
		return 0, fmt.Errorf("memory file: %w", err)
	}
	at, _, e := unix.Syscall6(unix.SYS_MMAP, 0, markerSize, unix.PROT_READ, unix.MAP_PRIVATE, uintptr(fd), 0)
	if e != 0 {
		return 0, fmt.Errorf("mmap of a memory file: %w", e)
	}
	return uint64(at), nil
}

const markerSize = 4096

// release lets others come: the mapping goes first, for they look for it once they have the lock.
func (c *claim) release() error {
	var err error
	if c.marker != 0 {
		err, c.marker = unmap(c.marker, markerSize), 0
	}
	if c.lock != nil {
		err, c.lock = errors.Join(err, procfs.ReleaseHold(c.lock)), nil
	}
	return err
}
