package process

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

var _ target.Unwinder = (*Target)(nil)

// MapTable maps a memory file with the bytes, whose pages the tracer pays for.
func (t *Target) MapTable(b []byte) (addr uint64, err error) {
	size := procfs.PageUp(uint64(len(b)))
	if err := t.checkRoom("unwind tables", headroom.Take{Ours: size, Mapped: size, Locked: size}); err != nil {
		return 0, err
	}
	err = t.stopped(func(s *ptrace.Stopped) error {
		return t.memfd(s, heapName, func(local *os.File, fd int) error {
			err := local.Truncate(int64(size))
			if err == nil {
				_, err = local.WriteAt(b, 0)
			}
			if err == nil {
				err = seal(local)
			}
			if err = errors.Join(err, local.Close()); err != nil {
				return err
			}
			addr, err = s.Mmap(0, size, unix.PROT_READ, unix.MAP_PRIVATE, fd, 0)
			return err
		})
	})
	return addr, err
}

// NewTable takes memory of the heap.
func (t *Target) NewTable(size int) (uint64, error) {
	if err := t.checkRoom("a table", headroom.Take{Charged: uint64(size)}); err != nil {
		return 0, err
	}
	return t.control.alloc(uint64(size))
}

// WriteTable writes to it.
func (t *Target) WriteTable(addr uint64, b []byte) error { return t.p.WriteMem(addr, b) }

// SetUnwind sets the word that leads to the list of tables. No thread reads half of it: all stand.
func (t *Target) SetUnwind(list uint64) error {
	return t.stopped(func(*ptrace.Stopped) error { return t.control.put(hdrUnwind, list) })
}
