package kprobes

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
)

// Tactic is how a probe gets control. Options, State and Event have it.
type Tactic = arch.Tactic

// The tactics, the cheapest first.
const (
	TacticJump   = arch.TacticJump   // a jump replaces the instruction
	TacticBoost  = arch.TacticBoost  // a breakpoint; the instruction runs out of line, and jumps back
	TacticStep   = arch.TacticStep   // as boost, with a second breakpoint behind the copied instruction: to compare with
	TacticUprobe = arch.TacticUprobe // the kernel's own probe of a process
	TacticBreak  = arch.TacticBreak  // the virtual machine's breakpoint in a guest
	TacticWatch  = arch.TacticWatch  // a watchpoint: the processor's, which watches memory and changes no code
)

// ErrBlocked says that a change is not made, since a thread stayed where it must not be. A later
// attempt may succeed.
var ErrBlocked = target.ErrBlocked
