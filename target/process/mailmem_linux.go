package process

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/mailbox"
)

// mailMem is our mapping of a mailbox (internal/arch/amd64, gate.go). The process can write to all of
// it: what is read is copied, then checked, then used.
type mailMem struct {
	file *os.File // tells that the mapping is a tracer's (left_linux.go)
	b    []byte
}

// mapMail maps a mailbox's memory file of so many bytes, which it owns from then on. The file can
// not shrink, so no access to the mapping faults.
func mapMail(f *os.File, size int) (*mailMem, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mailbox: %w", err), f.Close())
	}
	return &mailMem{file: f, b: b}, nil
}

func (m *mailMem) close() error {
	return errors.Join(unix.Munmap(m.b), m.file.Close())
}

// mem is the mapping as a mailbox.
func (m *mailMem) mem() mailbox.Mem {
	return mailbox.Mem{B: m.b, Slots: arch.MailSlots, Descs: (len(m.b) - arch.MailDescsOff) / arch.MailDescSize, First: arch.MailDescsOff}
}

// Operations of futex(2) on memory that two processes share.
const (
	futexWaitOp = 0
	futexWakeOp = 1
)

// sleep waits until the word is not v, or somebody wakes its waiters.
func (m *mailMem) sleep(word *uint32, v uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(v), 0, 0, 0) // the caller looks again in any case
}

// sleepFor is sleep for some time at most.
func (m *mailMem) sleepFor(word *uint32, v uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(v), uintptr(unsafe.Pointer(&ts)), 0, 0) // the caller looks again in any case
}

// wake wakes up to n of the word's waiters.
func (m *mailMem) wake(word *uint32, n int) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakeOp, uintptr(n), 0, 0, 0) // it does not fail on memory that is there
}
