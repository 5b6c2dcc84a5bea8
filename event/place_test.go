package event

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlaces(t *testing.T) {
	sym := func(s string) Place { return Place{Symbol: s} }
	for _, c := range []struct {
		in    string
		want  Place
		print string // "" if as written
	}{
		{"vfs_read", sym("vfs_read"), ""},
		{"vfs_read+8", Place{Symbol: "vfs_read", Offset: 8}, ""},
		{"vfs_read+0x10", Place{Symbol: "vfs_read", Offset: 16}, "vfs_read+16"},
		{"vfs_read+010", Place{Symbol: "vfs_read", Offset: 8}, "vfs_read+8"},
		{"vfs_read+0", sym("vfs_read"), "vfs_read"},
		{"vfs_read+4294967295", Place{Symbol: "vfs_read", Offset: 1<<32 - 1}, ""},
		{"vfs_read%return", Place{Symbol: "vfs_read", Return: true}, "vfs_read"},
		{"vfs_read+4%return", Place{Symbol: "vfs_read", Offset: 4, Return: true}, "vfs_read+4"},
		{"libc.so.6:malloc", Place{Module: "libc.so.6", Symbol: "malloc"}, ""},
		{"libc.so.6:malloc+0x4", Place{Module: "libc.so.6", Symbol: "malloc", Offset: 4}, "libc.so.6:malloc+4"},
		{"/usr/lib/libc.so.6:malloc", Place{Module: "/usr/lib/libc.so.6", Symbol: "malloc"}, ""},
		{"foo.part.0", sym("foo.part.0"), ""},
		{"malloc@@GLIBC_2.2.5", sym("malloc@@GLIBC_2.2.5"), ""},

		// Numbers.
		{"0x401000", Place{Kind: PlaceAddr, Addr: 0x401000}, ""},
		{"4198400", Place{Kind: PlaceAddr, Addr: 0x401000}, "0x401000"},
		{"0XffffffffffffffFf", Place{Kind: PlaceAddr, Addr: 1<<64 - 1}, "0xffffffffffffffff"},
		{"0x401000%return", Place{Kind: PlaceAddr, Addr: 0x401000, Return: true}, "0x401000"},
		{"libc.so.6:0x1000", Place{Kind: PlaceAddr, Module: "libc.so.6", Addr: 0x1000}, ""},
		{"libc.so.6:4096", Place{Kind: PlaceAddr, Module: "libc.so.6", Addr: 0x1000}, "libc.so.6:0x1000"},
		{"/bin/bash:0x4245c0", Place{Kind: PlaceFile, Path: "/bin/bash", Addr: 0x4245c0}, ""},
		{"./a.out:16", Place{Kind: PlaceFile, Path: "./a.out", Addr: 16}, "./a.out:0x10"},
		{"/bin/bash:0x10%return", Place{Kind: PlaceFile, Path: "/bin/bash", Addr: 16, Return: true}, "/bin/bash:0x10"},
		{`"/my files/a b":0x10`, Place{Kind: PlaceFile, Path: "/my files/a b", Addr: 16}, ""},
		{`"/opt/a:b":0x10`, Place{Kind: PlaceFile, Path: "/opt/a:b", Addr: 16}, ""},
		{"server.go:120", Place{Kind: PlaceLine, Path: "server.go", Line: 120}, ""},
		{"net/http/server.go:120", Place{Kind: PlaceLine, Path: "net/http/server.go", Line: 120}, ""},
		{"db.c:7%return", Place{Kind: PlaceLine, Path: "db.c", Line: 7, Return: true}, "db.c:7"},
		{"plugin.go:0x78", Place{Kind: PlaceAddr, Module: "plugin.go", Addr: 0x78}, ""},

		// C++ and Rust.
		{"std::vector<int>::push_back", sym("std::vector<int>::push_back"), ""},
		{"libfoo.so:ns::C::f+2", Place{Module: "libfoo.so", Symbol: "ns::C::f", Offset: 2}, "libfoo.so:ns::C::f+2"},
		{"libfoo.so:::f", Place{Module: "libfoo.so", Symbol: "::f"}, ""},
		{"::f", sym("::f"), ""},
		{"ns::C::~C", sym("ns::C::~C"), ""},
		{"operator+", sym("operator+"), ""},
		{"ns::operator++", sym("ns::operator++"), ""},
		{"operator++4", Place{Symbol: "operator+", Offset: 4}, "operator++4"},
		{"operator-", sym("operator-"), ""},
		{"operator%", sym("operator%"), ""},
		{"ns::operator%=", sym("ns::operator%="), ""},
		{"operator%%return", Place{Symbol: "operator%", Return: true}, "operator%"},
		{"operator*", sym("operator*"), ""},
		{"operator[]", sym("operator[]"), ""},
		{"f(char*,int)", sym("f(char*,int)"), ""},
		{`"operator new(unsigned long)"`, sym("operator new(unsigned long)"), ""},
		{`"operator new(unsigned long)"+12`, Place{Symbol: "operator new(unsigned long)", Offset: 12}, ""},
		{`libfoo.so:"operator new(unsigned long)"%return`, Place{Module: "libfoo.so", Symbol: "operator new(unsigned long)", Return: true}, `libfoo.so:"operator new(unsigned long)"`},
		{`"f<(4+5)>"`, sym("f<(4+5)>"), `"f<(4+5)>"`},
		{`"vfs_read"`, sym("vfs_read"), "vfs_read"},
		{`"a:b"`, sym("a:b"), `"a:b"`},
		{`"x+4"`, sym("x+4"), `"x+4"`},
		{`"f%return"`, sym("f%return"), `"f%return"`},
		{`"0x10"`, sym("0x10"), `"0x10"`},
		{`"main::{closure#0}"`, sym("main::{closure#0}"), `"main::{closure#0}"`},

		// Go.
		{"main.main", sym("main.main"), ""},
		{"main.(*Server).Handle", sym("main.(*Server).Handle"), ""},
		{"pkg/path.Func", sym("pkg/path.Func"), ""},
		{"github.com/x/go-y.(*T).M", sym("github.com/x/go-y.(*T).M"), ""},
		{"github.com/x/go-y.(*T).M+0x20", Place{Symbol: "github.com/x/go-y.(*T).M", Offset: 32}, "github.com/x/go-y.(*T).M+32"},
		{"github.com/x/v-2.F", sym("github.com/x/v-2.F"), ""},
		{"example.com/c++/x.F", sym("example.com/c++/x.F"), ""},
		{"main.F.func1-range1", sym("main.F.func1-range1"), ""},
		{"main.Map[go.shape.int]", sym("main.Map[go.shape.int]"), ""},
		{"main.Map[...]", sym("main.Map[...]"), ""},
		{"plugin.so:github.com/x/y.F", Place{Module: "plugin.so", Symbol: "github.com/x/y.F"}, ""},
		{`"main.F[go.shape.struct { X int }]"`, sym("main.F[go.shape.struct { X int }]"), ""},

		// Patterns.
		{"vfs_*", Place{Symbol: "vfs_*", Glob: true}, ""},
		{"*", Place{Symbol: "*", Glob: true}, ""},
		{"vfs_?ead", Place{Symbol: "vfs_?ead", Glob: true}, ""},
		{"vfs_[rw]", Place{Symbol: "vfs_[rw]", Glob: true}, ""},
		{"libc.so.6:mem*%return", Place{Module: "libc.so.6", Symbol: "mem*", Glob: true, Return: true}, "libc.so.6:mem*"},
		{"main.(*Server).*", Place{Symbol: "main.(*Server).*", Glob: true}, ""},
		{"net/http.*", Place{Symbol: "net/http.*", Glob: true}, ""},
		{`"vfs_*"`, sym("vfs_*"), `"vfs_*"`},
	} {
		d, err := Parse("p:x " + c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if d.Place.Pos != 4 {
			t.Errorf("%s: position %d", c.in, d.Place.Pos)
		}
		d.Place.Pos = 0
		if diff := cmp.Diff(c.want, d.Place); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.in, diff)
		}
		if want := c.want.Return; want != (d.Kind == Return) {
			t.Errorf("%s: kind %v", c.in, d.Kind)
		}
		if c.print == "" {
			c.print = c.in
		}
		if got := d.Place.String(); got != c.print {
			t.Errorf("%s: printed %s, want %s", c.in, got, c.print)
		}
	}
}

func TestNamer(t *testing.T) {
	var n Namer
	if !n.Reserve("p_taken_0") || n.Reserve("p_taken_0") {
		t.Error("a name is reserved once")
	}
	for _, c := range []struct{ in, want string }{
		{"p vfs_read", "p_vfs_read_0"},
		{"p vfs_read", "p_vfs_read_0_2"},
		{"p vfs_read $stack", "p_vfs_read_0_3"},
		{"p taken", "p_taken_0_2"},
		{"r vfs_read", "r_vfs_read_0"},
		{"p vfs_read%return", "r_vfs_read_0_2"},
		{"p vfs_read+0x10", "p_vfs_read_16"},
		{"p libc.so.6:malloc", "p_libc_so_6_malloc_0"},
		{"p /usr/lib/libc.so.6:malloc", "p_libc_so_6_malloc_0_2"},
		{"p 0x401000", "p_0x401000"},
		{"p libc.so.6:0x401000", "p_libc_so_6_0x401000"},
		{"p /bin/bash:0x10", "p_bash_0x10"},
		{"p net/http/server.go:120", "p_server_go_120"},
		{"p ns::C::~C", "p_ns__C___C_0"},
		{"p main.(*T).größe", "p_main___T__gr____e_0"},
		{`p "operator new(unsigned long)"`, "p_operator_new_unsigned_long__0"},
		{"p github.com/" + long + ".F", "p_github_com_" + long[:50]},
		{"p github.com/" + long + ".G", "p_github_com_" + long[:48] + "_2"},
	} {
		d, err := Parse(c.in)
		if err != nil {
			t.Fatal(err)
		}
		got := n.Name(d, d.Place)
		if got != c.want || len(got) > MaxName || !isName(got, false) {
			t.Errorf("%s: %s, want %s", c.in, got, c.want)
		}
	}
	n.Release("p_vfs_read_0")
	d, err := Parse("p vfs_*")
	if err != nil {
		t.Fatal(err)
	}
	if got := n.Name(d, Place{Symbol: "vfs_read"}); got != "p_vfs_read_0" {
		t.Errorf("a function of a pattern is called %s", got)
	}
}
