package process

import (
	"kprobes.dev/kprobes/internal/ptrace"
)

// OnStep has f called before every request that can change a process; nil: no more.
func OnStep(f func(what string)) { ptrace.OnStep = f }
