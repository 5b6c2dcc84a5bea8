package native

import (
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/fetch"
)

// ChainCode is what generates the code that finds the span which a context of Go carries (fetch.Arg.Chain).
func ChainCode(c *fetch.Chain) any { return amd64.ChainCode(c) }
