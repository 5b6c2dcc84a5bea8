package native

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
)

// Handlers that run in line in a kernel.
type (
	KernelSlotEnv    = amd64.KernelSlotEnv
	KernelRuntimeEnv = amd64.KernelRuntimeEnv
	KernelRuntime    = amd64.KernelRuntime
)

// KernelSlotKinds is how many kinds of them there are.
const KernelSlotKinds = amd64.SlotKinds

// PutStartSlot prepares the memory of the slot in which a kernel's modules start and end.
func PutStartSlot(b []byte, addr uint64, n int) { amd64.PutStartSlot(b, addr, n) }

// NewKernelSlotGate generates the gate of a kernel's handlers that run in line, for an address.
func NewKernelSlotGate(addr uint64, kind SlotKind, env KernelSlotEnv) (*amd64.SlotGate, error) {
	return amd64.NewKernelSlotGate(addr, kind, env)
}

// NewKernelRuntime generates what those handlers call, for an address.
func NewKernelRuntime(addr uint64, env KernelRuntimeEnv, w *arch.CodegenEnv) (*KernelRuntime, error) {
	return amd64.NewKernelRuntime(addr, env, w)
}

// BelowStack finds the first access of straight code to memory below the stack pointer.
func BelowStack(code []byte) (at int, is bool) { return amd64.BelowStack(code) }
