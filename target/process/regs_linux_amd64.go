package process

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/ptrace"
)

// gateLink is the register in which a thread in the gate keeps the address of the detour that it came from.
func gateLink(r *ptrace.Regs) uint64 { return r.R13 }

// gateDesc is the register in which a thread in a gate has the descriptor of its handler, on the way there.
func gateDesc(r *ptrace.Regs) uint64 { return r.R12 }

// taskCalls are the system calls that make tasks, or set a thread pointer.
var taskCalls = []uint64{unix.SYS_CLONE, unix.SYS_VFORK, unix.SYS_ARCH_PRCTL, sysClone3}

// Offsets in struct pt_regs (arch/x86/include/uapi/asm/ptrace.h), by the number that
// instructions encode.
var ptRegs = [16]int{80, 88, 96, 40, 152, 32, 104, 112, 72, 64, 56, 48, 24, 16, 8, 0}

const (
	ptSP    = amd64.RSP // the stack pointer's place among ptRegs
	ptFlags = 144
)

// mapLow has mmap(2) map in the first 2 GB.
const mapLow = unix.MAP_32BIT
