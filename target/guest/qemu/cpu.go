package qemu

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
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
)

// parseRegs reads the answer to g.
func parseRegs(index int, answer string) (CPU, error) {
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

// changes gives the commands that turn the registers old into c: the general ones, RIP and
// RFLAGS.
func (c *CPU) changes(old *CPU) []string {
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

func swap64(v uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return binary.BigEndian.Uint64(b[:])
}
