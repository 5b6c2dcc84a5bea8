package symbol_test

import (
	"testing"

	"kprobes.dev/kprobes/internal/symbol"
	_ "kprobes.dev/kprobes/native" // for all tests of package symbol
)

func TestDemangle(t *testing.T) {
	const raw = "_ZN2ns6Server6handleIiEEvT_PKc"
	for name, want := range map[string][2]string{
		raw:                                      {"ns::Server::handle<int>", "void ns::Server::handle<int>(int, char const*)"},
		"_ZN4core3fmt5write17h0123456789abcdefE": {"core::fmt::write", "core::fmt::write"},
		"main.main":                              {"main.main", "main.main"},
		"_Z":                                     {"_Z", "_Z"},
	} {
		if got := [2]string{symbol.Demangle(name), symbol.DemangleFull(name)}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
