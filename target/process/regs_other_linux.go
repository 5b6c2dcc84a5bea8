//go:build !amd64

package process

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/ptrace"
)

// What regs_linux_amd64.go has for x86-64, for processors whose processes can not be opened yet.

func gateLink(*ptrace.Regs) uint64 { return 0 }

func gateDesc(*ptrace.Regs) uint64 { return 0 }

var taskCalls = []uint64{unix.SYS_CLONE, sysClone3}

var ptRegs [16]int

const ptSP, ptFlags, mapLow = 0, 0, 0
