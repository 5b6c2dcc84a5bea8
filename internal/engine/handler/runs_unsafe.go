package handler

import (
	"unsafe"

	"kprobes.dev/kprobes/internal/arch/native"
)

// threadHash is a number that runs on different threads mostly differ in: registers are
// handed over on the thread's own stack, or in memory of the run's own.
func threadHash(r *Regs) uintptr { return address(r) >> 14 }

// address is only compared and hashed: it keeps nothing alive.
func address(r *Regs) uintptr { return uintptr(unsafe.Pointer(r)) }

// slotHeader reads a slot of a pool in this process's own memory, of a call whose handler
// runs: nobody writes to it meanwhile.
func slotHeader(addr uint64) [native.SlotHeader]byte {
	return **(**[native.SlotHeader]byte)(unsafe.Pointer(&addr))
}
