package vars_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/fstest"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// leaf is a number in a value: the path to it, and how C prints it as a record shows it.
type leaf struct{ path, format, cast string }

// scalars are types of numbers, with what C prints of them.
var scalars = []struct{ name, format, cast string }{
	{"char", "%u", "unsigned char"},
	{"unsigned char", "%u", "unsigned char"},
	{"short", "%d", "int"},
	{"unsigned short", "%u", "unsigned"},
	{"int", "%d", "int"},
	{"unsigned", "%u", "unsigned"},
	{"long", "%ld", "long"},
	{"unsigned long", "%lu", "unsigned long"},
	{"void *", "0x%lx", "unsigned long"},
	{"enum small", "%u", "unsigned"},
	{"enum negative", "%d", "int"},
	{"float", "", ""},
	{"double", "", ""},
	{"long double", "", ""},
}

// writer writes a C program of functions that take all kinds of values.
type writer struct {
	rnd        *rand.Rand
	types, fns strings.Builder
	calls      strings.Builder
	structs    int
	want       map[string][]leaf // of functions, by their names
}

// value declares a variable of a random type, and gives the numbers in it. fill is the code that sets them.
func (w *writer) value(name string, depth int) (decl string, leaves []leaf) {
	if depth < 3 && w.rnd.IntN(3) == 0 {
		return w.aggregate(name, depth)
	}
	s := scalars[w.rnd.IntN(len(scalars))]
	decl = s.name + " " + name
	if s.format != "" {
		leaves = []leaf{{name, s.format, s.cast}}
	}
	return decl, leaves
}

// aggregate declares a struct or a union with a few members.
func (w *writer) aggregate(name string, depth int) (decl string, leaves []leaf) {
	w.structs++
	kind := "struct"
	if w.rnd.IntN(6) == 0 {
		kind = "union"
	}
	tag := fmt.Sprintf("%s s%d", kind, w.structs)
	var body strings.Builder
	for i := range 1 + w.rnd.IntN(4) {
		m := fmt.Sprintf("m%d", i)
		switch n := w.rnd.IntN(8); {
		case n == 0 && kind == "struct": // a bit field
			width := 1 + w.rnd.IntN(20)
			if w.rnd.IntN(2) == 0 {
				fmt.Fprintf(&body, " unsigned %s:%d;", m, width)
				leaves = append(leaves, leaf{m, "%u", "unsigned"})
			} else {
				fmt.Fprintf(&body, " int %s:%d;", m, width)
				leaves = append(leaves, leaf{m, "%d", "int"})
			}
		case n == 1:
			count := 1 + w.rnd.IntN(3)
			fmt.Fprintf(&body, " int %s[%d];", m, count)
			for j := range count {
				leaves = append(leaves, leaf{fmt.Sprintf("%s[%d]", m, j), "%d", "int"})
			}
		default:
			d, ls := w.value(m, depth+1)
			fmt.Fprintf(&body, " %s;", d)
			leaves = append(leaves, ls...)
		}
	}
	fmt.Fprintf(&w.types, "%s {%s };\n", tag, body.String())
	for i := range leaves {
		leaves[i].path = name + "." + leaves[i].path
	}
	return tag + " " + name, leaves
}

// function writes a function of random parameters, and its call.
func (w *writer) function(i int) {
	name := fmt.Sprintf("f%d", i)
	var params, use, vars, args strings.Builder
	var all []leaf
	for j := range 1 + w.rnd.IntN(9) {
		p := fmt.Sprintf("p%d", j)
		decl, leaves := w.value(p, 0)
		if j > 0 {
			params.WriteString(", ")
			args.WriteString(", ")
		}
		params.WriteString(decl)
		args.WriteString(p)
		fmt.Fprintf(&use, " use(&%s);", p)
		fmt.Fprintf(&vars, "\t\t%s; fill(&%s, sizeof %s);\n", decl, p, p)
		if len(all)+len(leaves) <= event.MaxArgs {
			all = append(all, leaves...)
		}
	}
	fmt.Fprintf(&w.fns, "__attribute__((noinline, noipa)) void %s(%s) { calls++;%s }\n", name, params.String(), use.String())
	fmt.Fprintf(&w.calls, "\t{\n%s\t\tprintf(\"%s\");\n", vars.String(), name)
	for _, l := range all {
		fmt.Fprintf(&w.calls, "\t\tprintf(\" %s\", (%s)%s);\n", l.format, l.cast, l.path)
	}
	fmt.Fprintf(&w.calls, "\t\tputchar('\\n');\n\t\t%s(%s);\n\t}\n", name, args.String())
	w.want[name] = all
}

// source is a program that prints what it calls its functions with, once it has read a line.
func source(seed uint64, functions int) (string, map[string][]leaf) {
	w := &writer{rnd: rand.New(rand.NewPCG(seed, 1)), want: map[string][]leaf{}}
	for i := range functions {
		w.function(i)
	}
	return `// build: -w
#include <stdio.h>
enum small { A, B, C = 4000000000u };
enum negative { D = -1, E, F = 2147483647 };
long calls;
volatile void *used;
static void use(const void *p) { used = (void *)p; }
static unsigned long state = 88172645463325252ul;
static void fill(void *p, unsigned long n)
{
	for (unsigned long i = 0; i < n; i++) {
		state ^= state << 13, state ^= state >> 7, state ^= state << 17;
		((unsigned char *)p)[i] = state >> 32;
	}
}
` + w.types.String() + w.fns.String() + `int main(void)
{
	setvbuf(stdout, 0, _IOLBF, 0);
	puts("ready");
	getchar();
` + w.calls.String() + `	puts("done");
	getchar();
	return 0;
}
`, w.want
}

// arg is a leaf as an argument of a probe. Characters are taken as numbers.
func (l *leaf) arg(i int) string {
	a := fmt.Sprintf("a%d=%s", i, l.path)
	if l.cast == "unsigned char" {
		a += ":u8"
	}
	return a
}

// TestParameters probes functions with parameters of all kinds, and compares what is recorded of the numbers in them with what
// the program says it has passed.
func TestParameters(t *testing.T) {
	for _, flags := range [][]string{{"-O0"}, {"-O2"}, {"-O2", "-gdwarf-4"}, {"CC=clang", "-O0"}, {"CC=clang", "-O2"}, {"CC=clang", "-O2", "-gdwarf-4"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			for seed := range uint64(2) {
				parameters(t, seed, flags)
			}
		})
	}
}

func parameters(t *testing.T, seed uint64, flags []string) {
	src, want := source(seed, 60)
	path, err := cbuild.Build(fstest.MapFS{"vars.c": {Data: []byte(src)}}, ".", "vars", flags...)
	if err != nil {
		t.Fatal(err)
	}
	prog := testprog.Start(t, path)
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	target, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(target, nil)
	if err != nil {
		t.Fatal(err)
	}
	var defs []*event.Def
	for i := range len(want) {
		name := fmt.Sprintf("f%d", i)
		text := "p:" + name + " " + name
		for j := range want[name] {
			text += " " + want[name][j].arg(j)
		}
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	if _, err := core.Add(defs, nil); err != nil {
		t.Fatal(err)
	}
	prog.Send("")
	said := map[string]string{}
	for l := prog.Line(); l != "done"; l = prog.Line() {
		name, values, _ := strings.Cut(l, " ")
		said[name] = values
	}
	seen := map[string]string{}
	take := func(h *kprobes.Hit) {
		line, err := h.AppendArgs(nil, nil)
		if err != nil {
			t.Error(err)
		}
		var values []string
		for _, w := range strings.Fields(string(line)) {
			_, v, _ := strings.Cut(w, "=")
			values = append(values, v)
		}
		seen[h.Event.Name] = strings.Join(values, " ")
	}
	if err := core.Close(take); err != nil {
		t.Error(err)
	}
	for name, leaves := range want {
		if seen[name] == said[name] {
			continue
		}
		a, b := strings.Fields(seen[name]), strings.Fields(said[name])
		for i := range leaves {
			if len(a) != len(leaves) || len(b) != len(leaves) || a[i] != b[i] {
				t.Errorf("seed %d, %s, %s: the program passed %q, recorded was %q", seed, name, leaves[i].path, b, a)
				break
			}
		}
	}
}
