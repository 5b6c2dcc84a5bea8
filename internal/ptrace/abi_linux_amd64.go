package ptrace

import (
	"debug/elf"
	"fmt"

	"kprobes.dev/kprobes/internal/procfs"
)

const (
	redZone   = 128        // bytes below the stack pointer that are live (psABI 3.2.2)
	auditArch = 0xc000003e // AUDIT_ARCH_X86_64
)

// checkMachine refuses programs of another machine.
func checkMachine(class elf.Class, machine elf.Machine) error {
	switch {
	case machine != elf.EM_X86_64:
		return fmt.Errorf("%w: program is for %v: only x86-64 can be probed", ErrUnsupported, machine)
	case class != elf.ELFCLASS64:
		return fmt.Errorf("%w: program has 32-bit addresses (x32): only those with 64 can be probed", ErrUnsupported)
	}
	return nil
}

// threadStack says whether the thread's stack pointer is in a mapping that holds its control block too, as the C library
// makes them, and below that.
func (p *Process) threadStack(m procfs.Map, r *Regs) bool {
	return m.Contains(r.FSBase) && r.RSP < r.FSBase && p.PointsToItself(r.FSBase)
}

// PointsToItself says whether memory holds its own address, as a thread's control block does.
func (p *Process) PointsToItself(addr uint64) bool {
	var b [8]byte
	return p.ReadMem(addr, b[:]) == nil && le.Uint64(b[:]) == addr
}
