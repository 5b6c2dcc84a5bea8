package native

import "kprobes.dev/kprobes/internal/arch/amd64"

// ChainCode is what generates the code that finds the span which a context of Go carries (fetch.Chain.Code).
func ChainCode() any { return amd64.ChainCode() }
