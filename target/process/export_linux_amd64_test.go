package process

import (
	"kprobes.dev/kprobes/internal/ptrace"
)

// OnStep has f called before every request that can change a process; nil: no more.
func OnStep(f func(what string)) { ptrace.OnStep = f }

// WaitWord is the word that says whether threads wait in the loader's hook.
func (t *Target) WaitWord() (uint64, error) { return t.control.get(hdrWait + 8) }

// SetWaitWord sets it.
func (t *Target) SetWaitWord(v uint64) error { return t.control.put(hdrWait+8, v) }
