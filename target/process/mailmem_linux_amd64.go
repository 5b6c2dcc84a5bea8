package process

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/arch/amd64"
)

// mailMem is our mapping of a mailbox (arch/amd64, gate.go). The process can write to all of
// it: what is read is copied, then checked, then used.
type mailMem struct {
	file *os.File // tells that the mapping is a tracer's (left_linux_amd64.go)
	b    []byte
}

// mapMail maps a mailbox's memory file, which it owns from then on. The file can not
// shrink, so no access to the mapping faults.
func mapMail(f *os.File) (*mailMem, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, amd64.MailSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mailbox: %w", err), f.Close())
	}
	return &mailMem{file: f, b: b}, nil
}

func (m *mailMem) close() error {
	return errors.Join(unix.Munmap(m.b), m.file.Close())
}

func (m *mailMem) word32(off int) *uint32 {
	_ = m.b[off+3]
	return (*uint32)(unsafe.Pointer(&m.b[off]))
}

func (m *mailMem) word64(off int) *uint64 {
	_ = m.b[off+7]
	return (*uint64)(unsafe.Pointer(&m.b[off]))
}

// state is the state of a slot.
func (m *mailMem) state(slot int) *uint32 { return m.word32(slotAt(slot) + amd64.MailStateOff) }

// slot is what stands in a slot.
func (m *mailMem) slot(slot int) []byte { return m.b[slotAt(slot):][:amd64.MailSlotSize] }

func slotAt(slot int) int { return amd64.MailSlotsOff + slot*amd64.MailSlotSize }

// descAt is where a descriptor stands, from the start of the mailbox.
func descAt(desc int) int { return amd64.MailDescsOff + desc*amd64.MailDescSize }

// Operations of futex(2) on memory that two processes share.
const (
	futexWaitOp = 0
	futexWakeOp = 1
)

// sleep waits until the word is not v, or somebody wakes its waiters.
func (m *mailMem) sleep(word *uint32, v uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(v), 0, 0, 0) // the caller looks again in any case
}

// wake wakes up to n of the word's waiters.
func (m *mailMem) wake(word *uint32, n int) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakeOp, uintptr(n), 0, 0, 0) // it does not fail on memory that is there
}

// move makes a step of a slot's state, if it is still the first one.
func (m *mailMem) move(slot int, from, to uint32) bool {
	return atomic.CompareAndSwapUint32(m.state(slot), from, to)
}
