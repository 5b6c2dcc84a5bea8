package native

import "kprobes.dev/kprobes/internal/arch/amd64"

// MaskCode is what generates the code that knows threads' signal masks (arch.Masks).
func MaskCode() any { return amd64.MaskCode() }
