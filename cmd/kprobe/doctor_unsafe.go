package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// addressOf is where a buffer lies in memory, as an offset in /proc/self/mem.
func addressOf(b []byte) int64 { return int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// rseqRegistered asks where a stopped thread has registered its restartable sequence
// (struct ptrace_rseq_configuration, Linux 5.13). To be called on the thread that traces
// it.
func rseqRegistered(tid int) (addr uint64, err error) {
	var c struct {
		pointer               uint64
		size, signature, flag uint32
		_                     uint32
	}
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_RSEQ_CONFIGURATION, uintptr(tid),
		unsafe.Sizeof(c), uintptr(unsafe.Pointer(&c)), 0, 0)
	if e != 0 {
		return 0, e
	}
	return c.pointer, nil
}
