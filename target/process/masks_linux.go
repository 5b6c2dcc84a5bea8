package process

import (
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/symbol"
)

// learnMasks finds out in which functions of a Go program a fault is always caught, once the handler is there: where the
// program has no C, and changes neither signal masks nor handlers itself, in all but those that its runtime runs with
// signals blocked. Of a program without handlers nothing is known, unless Start has made it: its variables may not be
// relocated yet.
func (t *Target) learnMasks() {
	t.masked = nil
	if !t.module[0].im.IsGo() || t.o.Stopped == nil && !t.catches() || codescan.ChangesMasks(t.Space(), t.Read) != nil {
		return
	}
	if path, err := codescan.SignalPath(t.Space(), t.Read); err == nil {
		t.masked = path
	}
}

// FaultsCaught says whether no thread that is in the function at an address can have the signals of a fault blocked, and
// the handler that catches faults of loads is there (from when on says arch.CodegenEnv.Asks).
func (t *Target) FaultsCaught(fn uint64) bool {
	if t.masked == nil || t.golang == nil {
		return false
	}
	if _, may := t.masked[fn]; may {
		return false
	}
	f, _, ok := t.module[0].im.At(fn - t.module[0].bias)
	return ok && f.Lang == symbol.LangGo
}
