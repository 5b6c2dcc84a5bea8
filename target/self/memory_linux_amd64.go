package self

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

// mapAnon maps memory of the process's own; at 0: anywhere, else exactly there.
func mapAnon(at, size uint64, prot int) (uint64, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if at != 0 {
		flags |= unix.MAP_FIXED_NOREPLACE
	}
	got, _, e := unix.Syscall6(unix.SYS_MMAP, uintptr(at), uintptr(size), uintptr(prot), uintptr(flags), ^uintptr(0), 0)
	if e != 0 {
		return 0, fmt.Errorf("mmap of %d bytes: %w", size, e)
	}
	return uint64(got), nil
}

func unmap(addr, size uint64) error {
	if _, _, e := unix.Syscall(unix.SYS_MUNMAP, uintptr(addr), uintptr(size), 0); e != 0 {
		return fmt.Errorf("munmap of %d bytes at 0x%x: %w", size, addr, e)
	}
	return nil
}

// bytesAt is memory that is known to be there, and not of the Go heap.
//
//go:norace
//go:nocheckptr
func bytesAt(addr uint64, n int) []byte { return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n) }

// Read reads the own memory. A bad address is an error.
func (t *Target) Read(addr uint64, b []byte) error { return access(false, addr, b) }

// Write writes the own memory where that is writable. A bad address is an error.
func (t *Target) Write(addr uint64, b []byte) error {
	return access(true, addr, b)
}

// access has the kernel copy between b and memory at an address that may be bad. The numbers of its calls are constants
// where they are made: package codescan reads them.
func access(write bool, addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	remote := unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
	var n uintptr
	var e unix.Errno
	if pid := uintptr(os.Getpid()); write {
		n, _, e = unix.RawSyscall6(unix.SYS_PROCESS_VM_WRITEV, pid, uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	} else {
		n, _, e = unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, pid, uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	}
	switch {
	case e != 0:
		return fmt.Errorf("memory at 0x%x, %d bytes: %w", addr, len(b), e)
	case int(n) != len(b):
		return fmt.Errorf("memory at 0x%x: %d of %d bytes are there: %w", addr, n, len(b), unix.EFAULT)
	}
	return nil
}
