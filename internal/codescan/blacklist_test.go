package codescan

import (
	"testing"

	"kprobes.dev/kprobes/internal/symbol"
)

// TestDeniedNames: every name that is listed is denied with its reason, also as
// the linker writes it, and a function of that name in another language is none of them.
func TestDeniedNames(t *testing.T) {
	s := &Scanner{}
	for _, l := range []struct {
		lang symbol.Lang
		why  func(string) string
		has  []string
	}{
		{symbol.LangGo, goDenied, []string{
			"runtime.goexit", "runtime.systemstack_switch", "runtime.asyncPreempt", "runtime.duffzero", "runtime.duffcopy", "runtime.sigtramp",
			"runtime.cgoSigtramp", "runtime.sigtrampgo", "runtime.sigfwd", "runtime.sigfwdgo", "runtime.sigprofNonGo", "runtime.sigprofNonGoWrapper",
			"runtime.badsignal", "runtime.sigreturn__sigaction", "_rt0_amd64", "_rt0_amd64_linux", "_rt0_amd64_lib", "_rt0_amd64_linux_lib",
			"runtime.rt0_go", "runtime.settls",
		}},
		{symbol.LangC, cDenied, []string{"__restore_rt", "__restore"}},
	} {
		for _, name := range l.has {
			why := l.why(name)
			for _, fn := range []*symbol.Func{
				{Name: name, Lang: l.lang},
				{Name: name + ".abi0", Lang: l.lang},
				{Name: "another", Aliases: []string{name}, Lang: l.lang},
			} {
				if got := s.FuncDenied(symbol.Resolved{Func: fn}); why == "" || got != why {
					t.Errorf("%s %v: %q, want %q", fn.Name, fn.Aliases, got, why)
				}
			}
			if got := s.FuncDenied(symbol.Resolved{Func: &symbol.Func{Name: name, Lang: symbol.LangRust}}); got != "" && l.lang == symbol.LangGo {
				t.Errorf("%s of another language: %s", name, got)
			}
		}
	}
	for _, name := range []string{"runtime.mallocgc", "runtime.goexit0", "main.goexit", "rt0_go", "runtime.sighandler"} {
		if got := s.FuncDenied(symbol.Resolved{Func: &symbol.Func{Name: name, Lang: symbol.LangGo}}); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
}
