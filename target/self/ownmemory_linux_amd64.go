package self

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ownMemory reads this process's memory by system calls, which fail where an access would
// fault, and which the scheduler does not know of.
type ownMemory struct {
	pid int
	fd  int // of /proc/self/mem; -1: process_vm_readv may be called
}

// memoryProbe is what openOwnMemory tries to read.
var memoryProbe uint64 = 0x1122334455667788

// openOwnMemory finds a way to read; sandboxes may deny one.
func openOwnMemory() (*ownMemory, error) {
	m := &ownMemory{pid: unix.Getpid(), fd: -1}
	var got [8]byte
	addr := uint64(uintptr(unsafe.Pointer(&memoryProbe)))
	err := m.read(addr, got[:])
	if err != nil {
		if m.fd, err = unix.Open("/proc/self/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("own memory can not be read by process_vm_readv nor opened: /proc/self/mem: %w", err)
		}
		err = m.read(addr, got[:])
	}
	if err == nil && binary.LittleEndian.Uint64(got[:]) != memoryProbe {
		err = fmt.Errorf("own memory at 0x%x reads as % x, not 0x%x", addr, got, memoryProbe)
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *ownMemory) close() {
	if m.fd >= 0 {
		unix.Close(m.fd)
	}
}

// read fills buf, or fails.
func (m *ownMemory) read(addr uint64, buf []byte) error {
	var n uintptr
	var e unix.Errno
	if m.fd >= 0 {
		n, _, e = unix.RawSyscall6(unix.SYS_PREAD64, uintptr(m.fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), uintptr(addr), 0, 0)
	} else {
		local := unix.Iovec{Base: unsafe.SliceData(buf), Len: uint64(len(buf))}
		remote := unix.RemoteIovec{Base: uintptr(addr), Len: len(buf)}
		n, _, e = unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(m.pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	}
	switch {
	case e != 0:
		return fmt.Errorf("own memory at 0x%x can not be read: %w", addr, e)
	case n != uintptr(len(buf)):
		return fmt.Errorf("own memory at 0x%x can be read for %d of %d bytes", addr, n, len(buf))
	}
	return nil
}
