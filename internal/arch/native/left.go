package native

import "kprobes.dev/kprobes/internal/arch/amd64"

// LeftCode is what generates the code that tells of calls that a goroutine has left (arch.Left).
func LeftCode() any { return amd64.LeftCode() }
