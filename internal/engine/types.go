package engine

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
)

// Regs are the registers of a thread at a probed instruction.
type Regs = native.Regs

// Tactic is how a probe gets control.
type Tactic = arch.Tactic
