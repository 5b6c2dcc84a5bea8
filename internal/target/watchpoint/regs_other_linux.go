//go:build !amd64

package watchpoint

// What regs_linux_amd64.go has for x86-64, for processors that have no watchpoints here yet.

var perfRegs [16]uint

const perfIP, perfFlags = 0, 0
