package process

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

var _ target.MemorySharer = (*Target)(nil)

// ShareMemory maps a memory file that the tracer keeps open: it can be read when the process has ended.
func (t *Target) ShareMemory(size int) (addr uint64, r io.ReaderAt, err error) {
	n := procfs.PageUp(uint64(size))
	if err := t.checkRoom("histograms", headroom.Take{Ours: n, Mapped: n, Locked: n}); err != nil {
		return 0, nil, err
	}
	err = t.stopped(func(s *ptrace.Stopped) error {
		return t.memfd(s, heapName, func(local *os.File, fd int) error {
			err := local.Truncate(int64(n))
			if err == nil {
				err = unix.Fallocate(int(local.Fd()), 0, 0, int64(n)) // the tracer pays, and no hit waits for a page
			}
			if err == nil {
				_, err = unix.FcntlInt(local.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
			}
			if err == nil {
				addr, err = s.Mmap(0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, 0)
			}
			if err != nil {
				return errors.Join(err, local.Close())
			}
			r = local
			return nil
		})
	})
	return addr, r, err
}
