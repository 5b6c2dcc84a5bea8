package spans

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"kprobes.dev/kprobes"
)

// names finds the names that attributes show.
type names struct{ core *kprobes.Core }

// Symbol implements hit.Namer.
func (n names) Symbol(addr uint64) (kprobes.Sym, bool) { return n.core.Symbol(addr) }

// Comm implements hit.Namer. A thread that has ended has no name.
func (names) Comm(tid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	if err != nil {
		return "<...>"
	}
	return strings.ToValidUTF8(strings.TrimSuffix(string(b), "\n"), "?")
}

// module is this one, and scope what makes the spans.
const (
	module = "kprobes.dev/kprobes"
	scope  = module + "/spans"
)

// version is that of the module in the program that runs; "": it is not known.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		if m.Path == module {
			return m.Version
		}
	}
	return ""
}
