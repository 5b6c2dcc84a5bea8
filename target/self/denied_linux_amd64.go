package self

import (
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/symbol"
)

// atHits are the functions outside this package that run at every hit of a probe with a handler, by the beginning of
// their names.
var atHits = []string{
	"kprobes.dev/kprobes/internal/engine/handler.(*Runner).",
	"kprobes.dev/kprobes/internal/engine/handler.(*runs).",
	"kprobes.dev/kprobes/internal/engine/handler.(*counter).",
	"kprobes.dev/kprobes.newKprobe.func",
	"kprobes.dev/kprobes.newRegistration.func",
}

// FuncDenied says why a function must not be probed, beyond what holds for every Go program; "":
// it may. These are this package's own functions, which a hit enters, and what they call in a stop; Linux
// marks its own by NOKPROBE_SYMBOL.
func (t *Target) FuncDenied(r symbol.Resolved) string {
	switch name := r.Func.Name; {
	case strings.HasPrefix(name, "kprobes.dev/kprobes/target/self."), strings.HasPrefix(name, "kprobes.dev/kprobes/internal/target/patch."):
		return "it stops threads, or calls handlers: a hit there would be one within a hit"
	case slices.ContainsFunc(atHits, func(p string) bool { return strings.HasPrefix(name, p) }):
		return "it runs at every hit of a probe with a handler"
	case name == "runtime.debugCallV2":
		return "the garbage collector knows its frames by their place, and sleepable handlers wait there"
	}
	return ""
}
