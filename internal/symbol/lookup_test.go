package symbol

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
)

const cppSource = `
#include <string>
#include <vector>
#define KEEP __attribute__((noinline, used))
namespace ns {
struct Server {
	int n;
	KEEP Server(int v) : n(v) {}
	KEEP virtual ~Server() { n = 0; }
	KEEP int handle(int x, const char *s) { return n + x + s[0]; }
	KEEP int handle(long x) const { return n - x; }
	KEEP int once(const std::string &s) const & { return s.size() + n; }
	KEEP explicit operator bool() const { return n != 0; }
	KEEP Server &operator<<(int x) { n += x; return *this; }
};
template <class T> KEEP T twice(T x) { return x + x; }
template <class T> KEEP T single(T x) { return x * x; }
int global_count = 3;
}
namespace { KEEP int hidden(int x) { return x ^ 5; } }
struct Base { virtual int run() = 0; int a = 1; };
struct Side { virtual int go() { return 2; } int b = 2; };
struct Both : Side, Base { KEEP int run() override { return a + b; } };
extern "C" KEEP int rust_legacy(int x) __asm__("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE");
extern "C" int rust_legacy(int x) { return x + 1; }
extern "C" KEEP int rust_v0(int x) __asm__("_RNvCs1234_7mycrate3foo");
extern "C" int rust_v0(int x) { return x + 2; }
extern "C" KEEP int copied(int x) __asm__("copied.constprop.0");
extern "C" int copied(int x) { return x + 3; }
extern "C" KEEP int split_off(int x) __asm__("piece.part.0");
extern "C" int split_off(int x) { return x + 4; }
extern "C" KEEP int folded(int x) __asm__("_ZN2ns6foldedEi.isra.0.constprop.1");
extern "C" int folded(int x) { return x + 5; }
extern "C" KEEP int private1(int x) __asm__("shared.lto_priv.0");
extern "C" int private1(int x) { return x + 6; }
extern "C" KEEP int private2(int x) __asm__("shared.lto_priv.1");
extern "C" int private2(int x) { return x + 7; }
int main(int argc, char **argv) {
	ns::Server s(argc);
	Both b;
	Base *p = &b;
	s << 3;
	return s.handle(1, argv[0]) + s.handle(2L) + s.once(argv[0]) + bool(s) + ns::twice(3) + ns::twice(2.5) +
		ns::single(7) + hidden(4) + p->run() + rust_legacy(1) + rust_v0(1) + copied(1) + split_off(1) + folded(1) + private1(1) + private2(2);
}
`

func TestLookupCPP(t *testing.T) {
	im := open(t, build(t, "g++", cppSource, "-O1"), noDebug)
	for name, raw := range map[string]string{
		"ns::Server::handle(int, char const*)": "_ZN2ns6Server6handleEiPKc",
		"ns::Server::handle(int,char const*)":  "_ZN2ns6Server6handleEiPKc",
		"ns::Server::handle(long) const":       "_ZNK2ns6Server6handleEl",
		"ns::Server::once":                     "_ZNKR2ns6Server4onceERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
		"ns::Server::operator bool":            "_ZNK2ns6ServercvbEv",
		"ns::Server::operator<<":               "_ZN2ns6ServerlsEi",
		"ns::Server::Server":                   "_ZN2ns6ServerC1Ei",
		"ns::Server::Server(int)":              "_ZN2ns6ServerC1Ei",
		"ns::twice<int>":                       "_ZN2ns5twiceIiEET_S1_",
		"ns::twice<double>(double)":            "_ZN2ns5twiceIdEET_S1_",
		"double ns::twice<double>(double)":     "_ZN2ns5twiceIdEET_S1_",
		"ns::single":                           "_ZN2ns6singleIiEET_S1_",
		"(anonymous namespace)::hidden":        "_ZN12_GLOBAL__N_16hiddenEi",
		"non-virtual thunk to Both::run()":     "_ZThn16_N4Both3runEv",
		"Both::run":                            "_ZN4Both3runEv",
		"core::fmt::Write::write_fmt":          "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
		"mycrate::foo":                         "_RNvCs1234_7mycrate3foo",
		"copied":                               "copied.constprop.0",
		"copied.constprop.0":                   "copied.constprop.0",
		"ns::folded":                           "_ZN2ns6foldedEi.isra.0.constprop.1",
		"_ZN2ns6foldedEi":                      "_ZN2ns6foldedEi.isra.0.constprop.1",
		"shared.lto_priv.1":                    "shared.lto_priv.1",
	} {
		fns, err := im.Lookup(name)
		if err != nil || fns[0].Name != raw && !slices.Contains(fns[0].Aliases, raw) {
			t.Errorf("Lookup(%q) = %v, %v, want %q", name, fns, err, raw)
		}
	}
	for range scansBeforeIndex {
		if _, err := im.Lookup("no::such"); err == nil {
			t.Fatal("no::such is found")
		}
	}
	for name, raw := range map[string]string{
		"ns::Server::operator bool":            "_ZNK2ns6ServercvbEv",
		"ns::Server::handle(int, char const*)": "_ZN2ns6Server6handleEiPKc",
		"ns::folded":                           "_ZN2ns6foldedEi.isra.0.constprop.1",
	} {
		if fn := one(t, im, name); fn.Name != raw {
			t.Errorf("by the index Lookup(%q) = %v, want %q", name, fn, raw)
		}
	}
	if s, err := im.Data("ns::global_count"); err != nil || s.Size != 4 {
		t.Errorf("Data(ns::global_count) = %+v, %v", s, err)
	}
}

func TestLookupCPPRefusals(t *testing.T) {
	im := open(t, build(t, "g++", cppSource, "-O1"), noDebug)
	var amb *AmbiguousError
	for name, n := range map[string]int{"ns::Server::handle": 2, "ns::twice": 2, "ns::Server::~Server": 2, "shared": 2} {
		if fns, err := im.Lookup(name); !errors.As(err, &amb) || len(fns) != n || len(amb.Candidates) != n {
			t.Errorf("Lookup(%q) = %v, %v, want %d candidates", name, fns, err, n)
		}
	}
	var nf *NotFoundError
	for name, hint := range map[string]string{
		"handle":           "ns::Server::handle",
		"ns::Client::once": "ns::Server::once",
		"piece.part.0":     "",
		"piece":            "",
		"ns::Server::":     "",
		"":                 "",
		"copied.constpro":  "",
	} {
		fns, err := im.Lookup(name)
		if !errors.As(err, &nf) || hint != "" && !slices.Contains(nf.Similar, hint) {
			t.Errorf("Lookup(%q) = %v, %v, want a hint at %q", name, fns, err, hint)
		}
	}
}

func TestLangAndPretty(t *testing.T) {
	im := open(t, build(t, "g++", cppSource, "-O1"), noDebug)
	for name, want := range map[string]struct {
		lang   Lang
		pretty string
	}{
		"_ZN2ns6Server6handleEiPKc":                        {LangCPP, "ns::Server::handle"},
		"_RNvCs1234_7mycrate3foo":                          {LangRust, "mycrate::foo"},
		"mycrate::foo":                                     {LangRust, "mycrate::foo"},
		"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE": {LangRust, "core::fmt::Write::write_fmt"},
		"main": {LangC, "main"},
	} {
		if f := one(t, im, name); f.Lang != want.lang || f.Pretty() != want.pretty {
			t.Errorf("%q: %v, %q, want %v, %q", name, f.Lang, f.Pretty(), want.lang, want.pretty)
		}
	}
	if got := DemangleFull("_ZN2ns6Server6handleEiPKc"); got != "ns::Server::handle(int, char const*)" {
		t.Errorf("DemangleFull gives %q", got)
	}
}

func TestClonesAndGlob(t *testing.T) {
	im := open(t, build(t, "g++", cppSource, "-O1"), noDebug)
	for pattern, want := range map[string][]string{
		"ns::Server::h*":    {"ns::Server::handle", "ns::Server::handle"},
		"*::hidden":         {"(anonymous namespace)::hidden"},
		"mycrate::*":        {"mycrate::foo"},
		"cop[h-j]ed*":       {"copied.constprop.0"},
		"cop[!a-h]ed*":      {"copied.constprop.0"},
		"cop[!i]ed*":        nil,
		"piece*":            nil,
		"ma?n":              {"main"},
		`m\ain`:             {"main"},
		"*::operator*":      {"ns::Server::operator bool", "ns::Server::operator<<"},
		"ns::twice<*>":      {"ns::twice<double>", "ns::twice<int>"},
		"std::*::no_such_*": nil,
	} {
		var got []string
		for _, f := range im.Glob(pattern) {
			got = append(got, f.Pretty())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("Glob(%q) = %q, want %q", pattern, got, want)
		}
	}
	const withClone = `#define K __attribute__((noinline, used))
K int worker(int x) { return x + 1; }
K int other(int x) __asm__("worker.constprop.0");
int other(int x) { return x + 2; }
int main(int c, char **v) { return worker(c) + other(c); }`
	im = open(t, build(t, "gcc", withClone, "-O1"), noDebug)
	f := one(t, im, "worker")
	if c := im.Clones(f); f.Name != "worker" || len(c) != 1 || c[0].Name != "worker.constprop.0" {
		t.Errorf("worker is %v, its clones %v", f, c)
	}
}

func TestSplitSuffix(t *testing.T) {
	for _, c := range []struct {
		name, base string
		kind       suffix
		of         string
	}{
		{"f", "f", suffixNone, ""},
		{"f.isra.0", "f", suffixClone, ""},
		{"f.constprop.12.isra.3", "f", suffixClone, ""},
		{"f.cold", "f", suffixCold, "f"},
		{"f.isra.0.cold", "f", suffixCold, "f.isra.0"},
		{"f.part.0", "f", suffixPart, "f"},
		{"f.part.0.cold", "f", suffixCold, "f"},
		{"f.cold.1", "f", suffixCold, "f"},
		{"f.llvm.123456789", "f", suffixClone, ""},
		{"f.__part.2", "f", suffixPart, "f"},
		{"f.something", "f.something", suffixNone, ""},
		{"f.0", "f.0", suffixNone, ""},
		{".cold", ".cold", suffixNone, ""},
		{"", "", suffixNone, ""},
		{"x..", "x..", suffixNone, ""},
	} {
		base, kind, of := splitSuffix(c.name)
		if base != c.base || kind != c.kind || of != c.of {
			t.Errorf("splitSuffix(%q) = %q, %d, %q, want %q, %d, %q", c.name, base, kind, of, c.base, c.kind, c.of)
		}
	}
}

// TestTokensAreSubstrings holds the filter before demangling to its promise: every token
// of every demangled name stands in the mangled name.
func TestTokensAreSubstrings(t *testing.T) {
	names := 0
	for _, path := range []string{"/usr/lib/x86_64-linux-gnu/libstdc++.so.6", llvm(t), build(t, "g++", cppSource, "-O1")} {
		for _, n := range open(t, path, noDebug).table().names {
			if mangling(n.str) == LangC {
				continue
			}
			names++
			for _, d := range []string{Demangle(n.str), DemangleFull(n.str)} {
				if d != n.str && !holdsAll(n.str, tokens(d)) {
					t.Errorf("%q: tokens %q of %q", n.str, tokens(d), d)
				}
			}
		}
	}
	if names < 20000 {
		t.Errorf("only %d names checked", names)
	}
}

// llvm is the largest shared object that comes with clang, C++ throughout.
func llvm(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/x86_64-linux-gnu/libLLVM-*.so.1")
	if len(found) == 0 {
		t.Fatal("no libLLVM found: install clang")
	}
	return found[0]
}
