package vars_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// asserted are the arguments that goasserts prints, in its order. Those with a " are strings.
var asserted = []string{
	"s.(*main.square).side", `s.(*main.square).name"`, "s.(main.circle).r", "s.(main.circle).tag[1]", "s.(main.wrap).p.side", `s.(*main.pair[int,string]).val"`,
	"x.(int)", `x.(string)"`, "x.(main.num)", "x.(*main.square).side", "x.(main.pair[string,main.num]).val",
	"h.in.(*main.square).side", `h.any.(string)"`, "x.(main.holder).in.(main.circle).r",
}

// returned are those of its function give.
var returned = []string{"n", "~r0.(*main.square).side", "~r0.(main.circle).r", `~r1.(*main.notFound).key"`, "~r1.(*main.notFound).code"}

// numbers leaves out strings, which a uprobe does not record.
func numbers(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasSuffix(a, `"`) })
}

func definition(head string, args []string) string {
	return head + " " + strings.ReplaceAll(strings.Join(args, " "), `"`, "")
}

// TestAssertions compares what type assertions in arguments find with what the program's own assertions find: at entries and returns,
// optimised and not, wherever the program lies, by generated code and by the kernel's.
func TestAssertions(t *testing.T) {
	for _, c := range []struct {
		name   string
		flags  []string
		uprobe bool
	}{
		{"optimised", nil, false},
		{"pie", []string{"-buildmode=pie"}, false},
		{"plain", []string{"-gcflags=-N -l"}, false},
		{"older", []string{"GOTOOLCHAIN=go1.25.14"}, false},
		{"uprobe", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.uprobe {
				said, seen := assertions(t, c.flags, &kprobes.AddOptions{Tactic: arch.TacticUprobe}, definition("p:look main.look", numbers(asserted)))
				for i, line := range said["look"] {
					said["look"][i] = withoutStrings(line)
				}
				compareLines(t, "look", seen["look"], said["look"])
				return
			}
			said, seen := assertions(t, c.flags, nil, definition("p:look main.look", asserted), definition("r:left main.look", asserted), definition("r:give main.give", returned))
			compareLines(t, "look", seen["look"], said["look"])
			compareLines(t, "left", seen["left"], said["look"])
			compareLines(t, "give", seen["give"], said["give"])
		})
	}
}

// TestAssertionFilters has filters test what is behind an interface, at the hit: what passes is what the program says.
func TestAssertionFilters(t *testing.T) {
	said, seen := assertions(t, nil, nil,
		"p:eleven main.look side=s.(*main.square).side if side == 11",
		"p:other main.look side=s.(*main.square).side if side == 0",
		`r:text main.look x=x.(string) if x == "text"`,
		"p:num main.look n=x.(main.num):s8 if n < 0",
		"p:pointer main.look p=x.(*main.square) side=x.(*main.square).side if p != 0", // takes no load to be tested
		"r:late main.look p=x.(*main.square) side=x.(*main.square).side if p != 0")
	want := map[string][]string{}
	for _, line := range said["look"] {
		w := strings.Fields(line)
		if w[0] == "11" {
			want["eleven"] = append(want["eleven"], w[0])
		} else {
			want["other"] = append(want["other"], "0")
		}
		if w[7] == `"text"` {
			want["text"] = append(want["text"], w[7])
		}
		if w[9] != "0" {
			want["pointer"] = append(want["pointer"], w[9])
		}
		if w[8] == "-3" {
			want["num"] = append(want["num"], w[8])
		}
	}
	for _, name := range []string{"eleven", "other", "text", "num"} {
		compareLines(t, name, seen[name], want[name])
	}
	for _, name := range []string{"pointer", "late"} {
		for i, line := range seen[name] {
			_, seen[name][i], _ = strings.Cut(line, " ")
		}
		compareLines(t, name, seen[name], want["pointer"])
	}
}

func compareLines(t *testing.T, name string, seen, said []string) {
	t.Helper()
	if len(seen) != len(said) || len(said) == 0 {
		t.Errorf("%s: %d records, the program has %d calls", name, len(seen), len(said))
		return
	}
	for i := range said {
		if seen[i] != said[i] {
			t.Errorf("%s, call %d: recorded\n%s, the program has\n%s", name, i, seen[i], said[i])
		}
	}
}

// withoutStrings leaves out the strings of a line of the program's.
func withoutStrings(line string) string {
	var kept []string
	for _, w := range strings.Fields(line) {
		if w[0] != '"' && w[0] != '(' {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}

// assertions runs goasserts with probes: what it says, and what is recorded, by the names of functions and events.
func assertions(t *testing.T, flags []string, o *kprobes.AddOptions, texts ...string) (said, seen map[string][]string) {
	core, prog := openAsserts(t, flags)
	var defs []*event.Def
	for _, text := range texts {
		text, filter, _ := strings.Cut(text, " if ")
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		d.Filter = filter
		defs = append(defs, d)
	}
	if _, err := core.Add(defs, o); err != nil {
		t.Fatal(err)
	}
	prog.Send("")
	said, seen = map[string][]string{}, map[string][]string{}
	for l := prog.Line(); l != "done"; l = prog.Line() {
		name, values, _ := strings.Cut(l, " ")
		said[name] = append(said[name], values)
	}
	err := core.Close(func(h *kprobes.Hit) {
		line, err := h.AppendArgs(nil, nil)
		if err != nil {
			t.Error(err)
		}
		var values []string
		for _, w := range strings.Fields(string(line)) {
			_, v, _ := strings.Cut(w, "=")
			values = append(values, v)
		}
		seen[h.Event.Name] = append(seen[h.Event.Name], strings.Join(values, " "))
	})
	if err != nil {
		t.Error(err)
	}
	return said, seen
}

// goAsserts builds the program, outside of this module, which wants a newer Go than some do. Flags that begin with GO are for the environment.
func goAsserts(t *testing.T, flags []string) string {
	dir := t.TempDir()
	text, err := os.ReadFile("testdata/goasserts/main.go")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.go"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("go", "build")
	c.Dir, c.Env = dir, os.Environ()
	for _, f := range flags {
		if strings.HasPrefix(f, "GO") {
			c.Env = append(c.Env, f)
		} else {
			c.Args = append(c.Args, f)
		}
	}
	c.Args = append(c.Args, "-o", "goasserts", "main.go")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v (the go command fetches another version of Go from a module proxy)\n%s", c, err, out)
	}
	return filepath.Join(dir, "goasserts")
}

func openAsserts(t *testing.T, flags []string) (*kprobes.Core, *testprog.Proc) {
	prog := testprog.Start(t, goAsserts(t, flags))
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	target, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return core, prog
}

// TestAssertionErrors has assertions that are refused, with the column of the type.
func TestAssertionErrors(t *testing.T) {
	core, _ := openAsserts(t, nil)
	for _, c := range []struct{ text, want string }{
		{"p main.look h.(^*main.square).side", "a type assertion goes behind an interface of Go; what stands before it is of type *main.holder"},
		{"p main.look s.(^main.cube).side", `no value of a type that is called "main.cube" is ever in an interface; a name begins with the path of its package, as in *net/http.response`},
		{"p main.look s.(^*square).side", `no type is called "*square"; there is *main.square`},
		{"p main.look s.(^data)", "an argument has one type, and can not take the one that the value has at the hit: name it"},
		{"p main.look x.(^main.shape)", "main.shape is an interface, which no value has as its type: name the type of the value"},
		{"p main.look ^s.(main.circle)", "values of type main.circle are not recorded as a whole: name a member; type main.circle has r, tag"},
		{"p main.look s.(main.circle).^side", "type main.circle has r, tag"},
		{"p main.look x.(int).(^int)", "what stands before it is of type int"},
		{"p runtime.mallocgc needzero.(^int)", "what stands before it is of type bool"},
	} {
		text := strings.Replace(c.text, "^", "", 1)
		d, err := event.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_, err = core.Add([]*event.Def{d}, nil)
		var e *event.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || e.Pos != strings.IndexByte(c.text, '^') {
			t.Errorf("%s: %v; want %q", c.text, err, c.want)
		}
	}
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
}
