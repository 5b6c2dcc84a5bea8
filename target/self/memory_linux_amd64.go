package self

import (
	"encoding/binary"
	"fmt"
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
