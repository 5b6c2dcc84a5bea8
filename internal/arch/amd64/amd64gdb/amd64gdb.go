// Package amd64gdb is the registers of an x86-64 vCPU as QEMU's gdb stub tells and takes them.
package amd64gdb

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// CPU is the registers of a stopped vCPU.
type CPU struct {
	Index int // from 0, QEMU's number

	RAX, RBX, RCX, RDX, RSI, RDI, RBP, RSP uint64
	R8, R9, R10, R11, R12, R13, R14, R15   uint64
	RIP, RFLAGS                            uint64
	CS, SS                                 uint16

	// Bases and page table, 0 where QEMU does not tell them. KernelGS is the base that
	// swapgs would bring: the kernel's in user mode, the user's in the kernel.
	FSBase, GSBase, KernelGS, CR3 uint64
}

// Kernel tells whether the vCPU executes code of the kernel (ring 0).
func (c *CPU) Kernel() bool { return c.CS&3 == 0 }

// PC is the instruction pointer.
func (c *CPU) PC() uint64 { return c.RIP }

// SetPC has the vCPU go on at an address, once it is given its registers (qemu.Stop.SetCPU).
func (c *CPU) SetPC(addr uint64) { c.RIP = addr }

// SP is the stack pointer.
func (c *CPU) SP() uint64 { return c.RSP }

// Root is the page table; 0: it is not known.
func (c *CPU) Root() uint64 { return c.CR3 }

// PerCPU is the base that instructions add to the offsets of a CPU's own memory, in code of the kernel.
func (c *CPU) PerCPU() uint64 { return c.GSBase }

// Elsewhere says whether the vCPU runs code of a kernel whose CPUs' own memory is not at base.
func (c *CPU) Elsewhere(base uint64) bool {
	return c.Kernel() && c.GSBase != 0 && c.GSBase != base && c.KernelGS != base
}

// Reg is a register by its number.
func (c *CPU) Reg(r fetch.Reg) uint64 {
	switch r {
	case fetch.RegIP:
		return c.RIP
	case fetch.RegFlags:
		return c.RFLAGS
	}
	general := [...]uint64{
		amd64.RAX: c.RAX, amd64.RCX: c.RCX, amd64.RDX: c.RDX, amd64.RBX: c.RBX, amd64.RSP: c.RSP, amd64.RBP: c.RBP, amd64.RSI: c.RSI, amd64.RDI: c.RDI,
		amd64.R8: c.R8, amd64.R9: c.R9, amd64.R10: c.R10, amd64.R11: c.R11, amd64.R12: c.R12, amd64.R13: c.R13, amd64.R14: c.R14, amd64.R15: c.R15,
	}
	if int(r) >= len(general) {
		return 0
	}
	return general[r]
}

// Pointers are what the general registers hold, but for the stack pointer: one of them may be a way back.
func (c *CPU) Pointers() []uint64 {
	return []uint64{c.RAX, c.RBX, c.RCX, c.RDX, c.RSI, c.RDI, c.RBP, c.R8, c.R9, c.R10, c.R11, c.R12, c.R13, c.R14, c.R15}
}

// words are the 64-bit registers that a handler may change, in the stub's order: numbers 0
// to 16.
func (c *CPU) words() [17]*uint64 {
	return [17]*uint64{
		&c.RAX, &c.RBX, &c.RCX, &c.RDX, &c.RSI, &c.RDI, &c.RBP, &c.RSP,
		&c.R8, &c.R9, &c.R10, &c.R11, &c.R12, &c.R13, &c.R14, &c.R15, &c.RIP,
	}
}

// Where things lie in the answer to g (QEMU 7.2, target/i386/gdbstub.c, in the order of
// gdb-xml/i386-64bit.xml): 17 words, eflags and six selectors of four bytes, then words
// again: fs_base, gs_base, k_gs_base, cr0, cr2, cr3, cr4, cr8, efer.
const (
	flagsAt    = 17 * 8
	csAt       = flagsAt + 4
	ssAt       = csAt + 4
	basesAt    = flagsAt + 7*4
	cr3At      = basesAt + 5*8
	minRegs    = basesAt
	flagsIndex = 17 // the stub's number of eflags
	cr3Index   = 29
)

// Parse reads the answer to g.
func Parse(index int, answer string) (CPU, error) {
	c := CPU{Index: index}
	b, err := hex.DecodeString(answer)
	if err != nil || len(b) < minRegs {
		return c, errno.Errorf(unix.EPROTO, "registers of vCPU %d: %d characters, want at least %d of hex: %.40q; only qemu-system-x86_64 is known",
			index, len(answer), 2*minRegs, answer)
	}
	for i, r := range c.words() {
		*r = binary.LittleEndian.Uint64(b[8*i:])
	}
	c.RFLAGS = uint64(binary.LittleEndian.Uint32(b[flagsAt:]))
	c.CS = binary.LittleEndian.Uint16(b[csAt:])
	c.SS = binary.LittleEndian.Uint16(b[ssAt:])
	if len(b) >= cr3At+8 {
		c.FSBase = binary.LittleEndian.Uint64(b[basesAt:])
		c.GSBase = binary.LittleEndian.Uint64(b[basesAt+8:])
		c.KernelGS = binary.LittleEndian.Uint64(b[basesAt+16:])
		c.CR3 = binary.LittleEndian.Uint64(b[cr3At:])
	}
	return c, nil
}

// Changes gives the commands that turn the registers old into c: the general ones, RIP and
// RFLAGS.
func (c *CPU) Changes(old *CPU) []string {
	var cmds []string
	was := old.words()
	for i, r := range c.words() {
		if *r != *was[i] {
			cmds = append(cmds, fmt.Sprintf("P%x=%016x", i, swap64(*r)))
		}
	}
	if c.RFLAGS != old.RFLAGS {
		cmds = append(cmds, fmt.Sprintf("P%x=%08x", flagsIndex, swap64(c.RFLAGS)>>32))
	}
	return cmds
}

// Reload gives the command that loads the page table's register with what it holds: the vCPU forgets what it remembers of
// page tables (QEMU 7.2, target/i386, cpu_x86_update_cr3). "": it has none.
func (c *CPU) Reload() string {
	if c.CR3 == 0 {
		return ""
	}
	return fmt.Sprintf("P%x=%016x", cr3Index, swap64(c.CR3))
}

func swap64(v uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return binary.BigEndian.Uint64(b[:])
}
