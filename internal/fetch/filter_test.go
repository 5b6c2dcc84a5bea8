package fetch

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
)

// filterArgs are the fields of the tests: one of each kind of number, and a string.
func filterArgs() *Program {
	number := func(name string, kind event.TypeKind, size int) Arg {
		return Arg{Name: name, Type: Type{Kind: kind, Size: size}, Store: StoreValue, Size: size}
	}
	return &Program{Args: []Arg{
		number("u", event.Unsigned, 8), number("i", event.Signed, 4), number("c", event.Unsigned, 1), number("h", event.Signed, 2),
		{Name: "s", Type: Type{Kind: event.String}, Store: StoreString},
		{Name: "a", Type: Type{Kind: event.Unsigned, Size: 4}, Store: StoreArray, Size: 4, Count: 3},
		{Name: "sym", Type: Type{Kind: event.SymStr, Size: 8}, Store: StoreValue, Size: 8},
	}}
}

func filterValues(p *Program, u, i, c, h uint64, s string) []Value {
	vs := []Value{{Num: u}, {Num: i}, {Num: c}, {Num: h}, {Str: []byte(s)}, {}, {}}
	for k := range vs {
		vs[k].Arg = &p.Args[k]
	}
	return vs
}

func TestFilterMatch(t *testing.T) {
	p := filterArgs()
	vs := filterValues(p, 1<<63, 0xfffffffe, 200, 0x8000, "/etc/passwd")
	h := &FilterHit{IP: 0x401000, PID: 77, CPU: 3}
	main := func(name string, addr uint64) (uint64, uint64, bool) {
		return 0x400ff0, 0x401010, name == "main" || name == "" && addr == 0x401005
	}
	env := FilterEnv{Functions: main}
	for text, want := range map[string]bool{
		"u > 5": true, "u < 5": false, "u == 0x8000000000000000": true, "u & 1": false, "u != 0": true,
		"i == -2": true, "i < 0": true, "i > 0": false, "i >= -2 && i <= -2": true, "i & 2": true,
		"c == 200": true, "c > 100": true, "c == 456": true, // of the field's size
		"h == -32768": true, "h < -1": true,
		`s == "/etc/passwd"`: true, `s != "/etc/passwd"`: false, `s ~ "*passw?"`: true, `s ~ "*passw?d"`: false, `s ~ "*passwd"`: true, `s ~ "!*passwd"`: false,
		`s ~ "/[a-e]tc/*"`: true, `s ~ "passwd"`: false, `s == "x" || u > 1`: true, `s ~ "*"`: true,
		"!(u > 5)": false, "!(u > 5 && i > 0)": true, "!(u > 5 || i > 0)": false, "!!u > 5": true, "u < 5 || i < 0 && c == 1": false, "(u < 5 || i < 0) && c == 200": true,
		"u < 5 && i < 0 || c == 200": true, "u < 5 &&": false, "u > 5 ||": true,
		"common_pid == 77": true, "CPU == 3": true, "CPU & CPUS{0-2}": false, "CPU & CPUS{0,3}": true, "CPU == CPUS{0,3}": false, "CPU == CPUS{3}": true, "CPU != CPUS{3}": false, "CPU != CPUS{2-3}": true,
		"__probe_ip == 0x401000": true, "__probe_ip.function == main": true, "__probe_ip.function != main": false, "__probe_ip.function == 0x401005": true, "common_flags == 0": true,
	} {
		f, err := p.Filter(text, env)
		if err != nil {
			t.Errorf("%v", err)
		} else if got := f.Match(vs, h); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	for _, text := range []string{"a == 1", "sym == 1", `sym == "x"`, "__probe_func == 1", "__probe_ip.function == nothing", "comm == \"x\"", "", "()", "u == 1 && ()", "u == 1 || c == 1 &&", strings.Repeat("(", 2048) + "u == 1" + strings.Repeat(")", 2048)} {
		if _, err := p.Filter(text, env); !errors.As(err, new(*event.FilterError)) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if f, err := p.Filter(`comm ~ "red*" && COMM != "redis"`, FilterEnv{Comm: true}); err != nil || !f.Match(vs, &FilterHit{Comm: "redisx"}) || f.Match(vs, &FilterHit{Comm: "redis"}) {
		t.Errorf("the thread's name: %v", err)
	}
	vs[4].Fault, vs[0].Unknown = true, true
	for _, text := range []string{`s == ""`, `s != ""`, `s ~ "*"`, "u == 0", "u != 0"} {
		if f, err := p.Filter(text, env); err != nil || f.Match(vs, h) {
			t.Errorf("%s passes where the value is not known (%v)", text, err)
		}
	}
}

// TestFilterSteps compares the steps of filters with what their terms say.
func TestFilterSteps(t *testing.T) {
	p, r := filterArgs(), rand.New(rand.NewPCG(3, 4))
	var make func(depth int) string
	make = func(depth int) string {
		not := []string{"", "!"}[r.IntN(2)]
		if depth == 0 || r.IntN(4) == 0 {
			return not + string("uic"[r.IntN(3)]) + " " + []string{"==", "!=", "<", ">=", "&"}[r.IntN(5)] + " " + string('0'+rune(r.IntN(4)))
		}
		var parts []string
		for range 1 + r.IntN(3) {
			parts = append(parts, make(depth-1))
		}
		return not + "(" + strings.Join(parts, []string{" && ", " || "}[r.IntN(2)]) + ")"
	}
	var truth func(x *event.FilterTerm, vs []Value) bool
	truth = func(x *event.FilterTerm, vs []Value) bool {
		held := func(y *event.FilterTerm) bool { return truth(y, vs) }
		failed := func(y *event.FilterTerm) bool { return !truth(y, vs) }
		switch {
		case x.Kind == event.TermAnd:
			return !slices.ContainsFunc(x.Terms, failed) != x.Not
		case x.Kind == event.TermOr:
			return slices.ContainsFunc(x.Terms, held) != x.Not
		}
		return CompareNumber(x.Test, vs[x.Test.Field.Arg].Num) != x.Not
	}
	passed := 0
	for range 5000 {
		text := make(4)
		f, err := p.Filter(text, FilterEnv{})
		if err != nil {
			t.Fatal(err)
		}
		tree, err := event.ParseFilter(text, &filterScope{p: p})
		if err != nil {
			t.Fatal(err)
		}
		vs := filterValues(p, r.Uint64N(4), r.Uint64N(4), r.Uint64N(4), 0, "")
		got := f.Match(vs, &FilterHit{})
		if got != truth(tree.Root, vs) {
			t.Fatalf("%s of %v: %v", text, vs, got)
		}
		if got {
			passed++
		}
	}
	if passed < 1000 || passed > 4000 {
		t.Errorf("%d of 5000 pass: that shows little", passed)
	}
}

// FuzzFilter gives the parser anything: it must not panic, and an error's place must be in the filter or close behind it, as the kernel has it.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{"u > 1 && !(i == -2 || s ~ \"a*\")", "CPU & CPUS{0-3,5}", "u.function == main", "((", "s == '", "c == 0x"} {
		f.Add(s)
	}
	p := filterArgs()
	f.Fuzz(func(t *testing.T, text string) {
		c, err := p.Filter(text, FilterEnv{})
		var bad *event.FilterError
		switch {
		case err == nil:
			c.Match(filterValues(p, 1, 2, 3, 4, text), &FilterHit{})
		case !errors.As(err, &bad) || bad.Pos < 0 || bad.Pos > len(bad.Filter)+2 || bad.Detail() == "":
			t.Errorf("%q: %v", text, err)
		}
	})
}
