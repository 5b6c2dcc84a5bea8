package engine

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
)

// Regs are the registers of a thread at a probed instruction.
type Regs = amd64.Regs

// Tactic is how a probe gets control.
type Tactic = arch.Tactic
