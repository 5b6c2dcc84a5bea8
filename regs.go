package kprobes

import "kprobes.dev/kprobes/internal/arch/native"

// Regs are the registers of a thread at a probed instruction: Linux's struct
// pt_regs. What a handler changes is loaded back when it returns. They are valid during
// the call of the handler only.
type Regs = native.Regs
