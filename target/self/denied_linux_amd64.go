package self

import (
	"strings"

	"kprobes.dev/kprobes/internal/symbol"
)

// FuncDenied says why a function must not be probed, beyond what holds for every Go program; "":
// it may. These are this package's own functions, which a hit enters; Linux
// marks its own by NOKPROBE_SYMBOL.
func (t *Target) FuncDenied(r symbol.Resolved) string {
	switch name := r.Func.Name; {
	case strings.HasPrefix(name, "kprobes.dev/kprobes/target/self."):
		return "it stops threads, or calls handlers: a hit there would be one within a hit"
	case strings.HasPrefix(name, "kprobes.dev/kprobes.(*probe)."), strings.HasPrefix(name, "kprobes.dev/kprobes.(*counter)."),
		strings.HasPrefix(name, "kprobes.dev/kprobes.(*Core).newCall.func"):
		return "it runs at every hit of a probe with a handler"
	case name == "runtime.debugCallV2":
		return "the garbage collector knows its frames by their place, and sleepable handlers wait there"
	}
	return ""
}
