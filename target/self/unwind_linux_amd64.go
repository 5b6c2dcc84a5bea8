package self

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
)

var _ target.Unwinder = (*Target)(nil)

// MapTable maps memory with the bytes.
func (t *Target) MapTable(b []byte) (uint64, error) {
	at, err := t.NewTable(len(b))
	if err != nil {
		return 0, err
	}
	if err := t.Write(at, b); err != nil {
		return 0, err
	}
	if _, _, e := unix.Syscall(unix.SYS_MPROTECT, uintptr(at), uintptr(procfs.PageUp(uint64(len(b)))), unix.PROT_READ); e != 0 {
		return 0, fmt.Errorf("unwind tables: %w", e)
	}
	return at, nil
}

// NewTable maps memory.
func (t *Target) NewTable(size int) (uint64, error) {
	n := procfs.PageUp(uint64(size))
	at, err := mapAnon(0, n, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return 0, fmt.Errorf("unwind tables: %w", err)
	}
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	t.unwind = append(t.unwind, table{at, n})
	return at, nil
}

// WriteTable writes to it.
func (t *Target) WriteTable(addr uint64, b []byte) error { return t.Write(addr, b) }

// SetUnwind sets the word that leads to the list of tables.
func (t *Target) SetUnwind(list uint64) error {
	setWord(t.control.addr+unwindOff, list)
	return nil
}

// unmapUnwind gives all tables back. Precondition: no thread is in generated code.
func (t *Target) unmapUnwind() (err error) {
	for _, u := range t.unwind {
		err = errors.Join(err, u.unmap())
	}
	t.unwind = nil
	return err
}
