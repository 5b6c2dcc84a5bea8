package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

var _ target.MemorySharer = (*Target)(nil)

// ShareMemory maps a memory file that the tracer maps too: it can be read when the process has ended.
func (t *Target) ShareMemory(what string, size int) (addr uint64, m target.SharedMemory, err error) {
	n := procfs.PageUp(uint64(size))
	if err := t.checkRoom(what, headroom.Take{Ours: n, Mapped: n, Locked: n}); err != nil {
		return 0, nil, err
	}
	err = t.stopped(func(s *ptrace.Stopped) error {
		return t.memfd(s, heapName, func(local *os.File, fd int) (err error) {
			defer func() { err = errors.Join(err, local.Close()) }()
			if err = local.Truncate(int64(n)); err != nil {
				return err
			}
			if err = unix.Fallocate(int(local.Fd()), 0, 0, int64(n)); err != nil { // the tracer pays, and no hit waits for a page
				return err
			}
			if _, err = unix.FcntlInt(local.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
				return err
			}
			ours, err := mapShared(local, int(n))
			if err != nil {
				return err
			}
			m = ours
			t.memories = append(t.memories, ours)
			addr, err = s.Mmap(0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, 0)
			return err
		})
	})
	return addr, m, err
}

// sharedMemory is the tracer's own mapping of memory. It stays until nobody uses it any more, or until Discard.
type sharedMemory struct {
	mem     []byte
	cleanup runtime.Cleanup
}

// mapShared maps a memory file that can not shrink.
func mapShared(f *os.File, n int) (*sharedMemory, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("memory file %s: %w", f.Name(), err)
	}
	m := &sharedMemory{mem: mem}
	m.cleanup = runtime.AddCleanup(m, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return m, nil
}

// ReadAt reads it.
func (m *sharedMemory) ReadAt(b []byte, off int64) (int, error) {
	defer runtime.KeepAlive(m)
	return bytes.NewReader(m.mem).ReadAt(b, off)
}

// close unmaps it. Precondition: nobody reads it any more.
func (m *sharedMemory) close() error {
	m.cleanup.Stop()
	mem := m.mem
	m.mem = nil
	return unix.Munmap(mem)
}
