package kprobes

import (
	"sync/atomic"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch/amd64"
)

// threadHash is a number that runs on different threads mostly differ in: registers are
// handed over on the thread's own stack, or in memory of the run's own.
func threadHash(r *Regs) uintptr { return address(r) >> 14 }

// address is only compared and hashed: it keeps nothing alive.
func address(r *Regs) uintptr { return uintptr(unsafe.Pointer(r)) }

// closure gives a func value's pointer: the data word of the interface that holds it
// (internal/abi.EmptyInterface; a func is pointer-shaped). Precondition: f holds a func.
func closure(f any) unsafe.Pointer { return (*[2]unsafe.Pointer)(unsafe.Pointer(&f))[1] }

// slotHeader reads a slot of a pool in this process's own memory, of a call whose handler
// runs: nobody writes to it meanwhile.
func slotHeader(addr uint64) [amd64.SlotHeader]byte {
	return **(**[amd64.SlotHeader]byte)(unsafe.Pointer(&addr))
}

// load gives what stands behind the Kprobe; nil if it was never registered, or is a copy of
// one that was.
func (k *Kprobe) load() *probe {
	p := (*probe)(atomic.LoadPointer((*unsafe.Pointer)(unsafe.Pointer(&k.reg))))
	if p == nil || p.kp != k {
		return nil
	}
	return p
}

// swap puts a probe behind the Kprobe in the place of old, as load or raw has given it, and
// says whether old still stood there.
func (k *Kprobe) swap(old, p *probe) bool {
	return atomic.CompareAndSwapPointer((*unsafe.Pointer)(unsafe.Pointer(&k.reg)), unsafe.Pointer(old), unsafe.Pointer(p))
}

// raw is load for whatever stands there.
func (k *Kprobe) raw() *probe {
	return (*probe)(atomic.LoadPointer((*unsafe.Pointer)(unsafe.Pointer(&k.reg))))
}
