package native

import "kprobes.dev/kprobes/internal/arch/amd64"

// KernelRecord is the size of what a hit in a kernel records beside its arguments.
const KernelRecord = amd64.KernelRecord

// KernelTasks reads it.
type KernelTasks = amd64.KernelTasks

// LongCall is the length of the longest call instruction.
const LongCall = amd64.LongCall

// EndsInCall says whether LongCall bytes end in a call, direct ones to an address from lowest on; the next instruction
// is at pc.
func EndsInCall(b []byte, pc, lowest uint64) bool { return amd64.EndsInCall(b, pc, lowest) }

// KernelGateEnv says what the gate of a kernel knows.
type KernelGateEnv = amd64.KernelGateEnv

// NewKernelGate generates the gate of a kernel, for an address.
func NewKernelGate(addr uint64, env KernelGateEnv) ([]byte, error) {
	return amd64.NewKernelGate(addr, env)
}

// KernelMailSize is the size of the part of a kernel's mailbox that its gate knows.
func KernelMailSize(cpus int) int { return amd64.KernelMailSize(cpus) }

// ReadKernelPost reads a post of a kernel's gate out of a copy of its slot.
func ReadKernelPost(slot []byte) Post { return amd64.ReadKernelPost(slot) }

// EventSalt is what keys of an event's instances in a kernel differ by from others'.
func EventSalt(event int) uint64 { return amd64.EventSalt(event) }
