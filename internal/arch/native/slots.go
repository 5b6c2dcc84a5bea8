package native

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
)

// Handlers that run in line, in slots.
type (
	SlotKind       = amd64.SlotKind
	SlotGateEnv    = amd64.SlotGateEnv
	SlotRuntimeEnv = amd64.SlotRuntimeEnv
	SlotRuntime    = amd64.SlotRuntime
	SlotCode       = amd64.SlotCode
	SlotDesc       = amd64.SlotDesc
	SlotRun        = amd64.SlotRun
	SlotUse        = amd64.SlotUse
)

// Their kinds, and the sizes of a slot and a descriptor.
const (
	SlotPre        = amd64.SlotPre
	SlotPost       = amd64.SlotPost
	SlotEntry      = amd64.SlotEntry
	SlotReturn     = amd64.SlotReturn
	SlotJump       = amd64.SlotJump
	SlotKinds      = amd64.SlotKinds
	SlotChanges    = amd64.SlotChanges
	SlotSize       = amd64.SlotSize
	SlotDescSize   = amd64.SlotDescSize
	SlotDescOff    = amd64.SlotDescOff
	SlotDescFaults = amd64.SlotDescFaults
)

// SlotCodeMost is how many bytes of code handlers that run in line need at most.
const SlotCodeMost = amd64.SlotCodeMost

// NewSlotCode generates the code of handlers that run in line, for an address.
func NewSlotCode(addr uint64, env SlotRuntimeEnv, w *arch.CodegenEnv) (*SlotCode, error) {
	return amd64.NewSlotCode(addr, env, w)
}

// SlotBlock is the size of what a module is told of a call with so many bytes of data.
func SlotBlock(data int) int { return amd64.SlotBlock(data) }

// ReadSlot reads the run of a key out of a copy of its slot.
func ReadSlot(key uint64, slot []byte) SlotRun { return amd64.ReadSlot(key, slot) }

// PutThreadBlock prepares the memory of a module's thread that its thread pointer leads to.
func PutThreadBlock(page []byte, off int, addr uint64, w *arch.CodegenEnv) bool {
	return amd64.PutThreadBlock(page, off, addr, w)
}

// SlotUseOf finds out what a handler does with the registers that it is given: see amd64.SlotUseOf.
func SlotUseOf(text []byte, base, handler uint64, ignores map[uint64]bool) SlotUse {
	return amd64.SlotUseOf(text, base, handler, ignores)
}

// PutSlot prepares the memory of a slot.
func PutSlot(b []byte, addr uint64, n int, stack uint64) { amd64.PutSlot(b, addr, n, stack) }

// StateUse is which of a thread's registers code uses.
type StateUse = amd64.StateUse

// What code uses.
const (
	StateGeneral = amd64.StateGeneral
	StateVectors = amd64.StateVectors
	StateWide    = amd64.StateWide
)

// UseOf says which state code uses, and where it uses the most: see amd64.UseOf.
func UseOf(code []byte) (most StateUse, at int, err error) { return amd64.UseOf(code) }

// StackUse is what a function takes of its stack.
type StackUse = amd64.StackUse

// StackOf says what the code of one function takes of its stack.
func StackOf(code []byte) StackUse { return amd64.StackOf(code) }

// UsesKernelData finds the first instruction that refers to a CPU's own data, as code of a kernel does; -1: there is none.
func UsesKernelData(code []byte) int { return amd64.UsesGS(code) }
