package vars_test

import (
	"bufio"
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// run is one run of a function: the texts of its parameters, nil for one that is not told.
type run struct {
	At     string             `json:"at"` // in hexadecimal
	Values map[string]*string `json:"values"`
}

// buildC builds a C or C++ program of testdata.
func buildC(name string) func(t *testing.T) string {
	return func(t *testing.T) string {
		path, err := cbuild.Build(os.DirFS("testdata"), ".", name)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// languages are optimised programs, with the functions to be probed and the file of their source.
var languages = []struct {
	name, pattern, file string
	build               func(t *testing.T) string
}{
	{"C", "*", "values.c", buildC("values")},
	{"C++", "shelf::*", "books.cc", buildC("books")},
	{"Rust", "jobs::*", "jobs.rs", rustJobs},
	{"Go", "main.*", "main.go", goValues},
}

// TestParametersAsGdb records $arg* of functions of optimised programs, and compares each value with what gdb says of a second
// run of the same program, which does the same.
func TestParametersAsGdb(t *testing.T) {
	for _, p := range languages {
		t.Run(p.name, func(t *testing.T) {
			d, err := event.Parse("p " + p.pattern + " $arg*")
			if err != nil {
				t.Fatal(err)
			}
			asGdb(t, p.build(t), []*event.Def{d}, p.name == "Go")
		})
	}
}

// TestVariablesAsGdb does the same with $vars at statements inside of functions.
func TestVariablesAsGdb(t *testing.T) {
	for _, p := range languages {
		t.Run(p.name, func(t *testing.T) {
			t.Setenv("VARS", "1")
			path := p.build(t)
			asGdb(t, path, statements(t, path, p.file), p.name == "Go")
		})
	}
}

// statements are definitions at the statements of a source file.
func statements(t *testing.T, path, file string) (defs []*event.Def) {
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	seen := starts(t, d)
	r := d.Reader()
	for e, err := r.Next(); e != nil && err == nil; e, err = r.Next() {
		if e.Tag != dwarf.TagCompileUnit {
			continue
		}
		lines, err := d.LineReader(e)
		for row := (dwarf.LineEntry{}); err == nil && lines != nil && lines.Next(&row) == nil; {
			if !row.IsStmt || row.EndSequence || seen[row.Address] || row.File == nil || filepath.Base(row.File.Name) != file {
				continue
			}
			seen[row.Address] = true
			def, err := event.Parse(fmt.Sprintf("p 0x%x $vars", row.Address))
			if err != nil {
				t.Fatal(err)
			}
			defs = append(defs, def)
		}
		r.SkipChildren()
	}
	return defs
}

func goValues(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "govalues")
	if out, err := exec.Command("go", "build", "-o", path, "./testdata/govalues").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// rustJobs builds with Debian's compiler.
func rustJobs(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "jobs")
	if out, err := exec.Command("/usr/bin/rustc", "-O", "-g", "-o", path, "testdata/jobs.rs").CombinedOutput(); err != nil {
		t.Fatalf("rustc: %v\n%s", err, out)
	}
	return path
}

// starts are the first instructions of functions, and of inlined calls, where gdb shows the variables of the caller.
func starts(t *testing.T, d *dwarf.Data) map[uint64]bool {
	starts := map[uint64]bool{}
	r := d.Reader()
	for e, err := r.Next(); e != nil; e, err = r.Next() {
		if err != nil {
			t.Fatal(err)
		}
		if e.Tag != dwarf.TagInlinedSubroutine && e.Tag != dwarf.TagSubprogram {
			continue
		}
		rs, err := d.Ranges(e)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			starts[r[0]] = true
		}
	}
	return starts
}

// asGdb probes a program.
func asGdb(t *testing.T, path string, defs []*event.Def, goProgram bool) {
	const functions = 20
	places, seen, leftOut := recorded(t, path, defs)
	told := gdbRuns(t, path, places)
	again := func(a, b run) bool { return a.At == b.At && reflect.DeepEqual(a.Values, b.Values) }
	if goProgram { // where the stack is to grow the function begins twice; that is one run for a probe
		seen, told = slices.CompactFunc(seen, again), slices.CompactFunc(told, again)
	}
	// Before the program is ready, and after it is done, nothing was recorded.
	told = slices.DeleteFunc(told, func(r run) bool {
		return !slices.ContainsFunc(seen, func(s run) bool { return s.At == r.At })
	})
	if len(seen) != len(told) {
		for i := range min(len(seen), len(told)) {
			if seen[i].At != told[i].At {
				t.Errorf("run %d: %v, gdb saw %v, before %v", i, seen[i], told[i], seen[i-1])
				break
			}
		}
		t.Fatalf("%d runs recorded, gdb saw %d", len(seen), len(told))
	}
	type share struct{ ours, gdb, all int }
	var sum share
	compared := map[string]bool{} // functions of which a parameter was compared
	wrong := map[string]bool{}    // told once
	heap := bijection{map[string]string{}, map[string]string{}}
	for i := range told {
		if seen[i].At != told[i].At {
			t.Fatalf("run %d: of %s, gdb saw %s\n%s\n%s", i, seen[i].At, told[i].At, order(seen, i), order(told, i))
		}
		for name, want := range told[i].Values {
			sum.all++
			got := seen[i].Values[name]
			if got != nil {
				sum.ours++
			}
			if want == nil {
				continue
			}
			sum.gdb++
			compared[told[i].At] = compared[told[i].At] || got != nil
			id := told[i].At + name
			switch {
			case wrong[id]:
			case got == nil && strings.Contains(leftOut[id], debuginfo.ErrLocation.Error()): // gdb computes
			case got == nil:
				wrong[id] = true
				t.Errorf("0x%s: %s is not recorded: %s; gdb: %s", told[i].At, name, leftOut[id], *want)
			case goProgram && strings.HasPrefix(*got, "0x") && heap.same(*got, *want):
			case *got != *want:
				wrong[id] = true
				t.Errorf("0x%s, run %d: %s=%s; gdb: %s", told[i].At, i, name, *got, *want)
			}
		}
	}
	if len(compared) < functions {
		t.Errorf("%d functions were compared, want %d", len(compared), functions)
	}
	t.Logf("%d functions, %d runs: of %d parameters %d were recorded, %d told by gdb", len(compared), len(seen), sum.all, sum.ours, sum.gdb)
}

// order shows the runs around one.
func order(rs []run, i int) (s string) {
	for _, r := range rs[max(0, i-4):min(len(rs), i+5)] {
		s += " " + r.At
	}
	return s
}

// bijection has the addresses of the same things in two runs of a Go program, whose heap is not laid out alike.
type bijection struct{ to, from map[string]string }

func (b *bijection) same(x, y string) bool {
	if b.to[x] == "" && b.from[y] == "" {
		b.to[x], b.from[y] = y, x
	}
	return b.to[x] == y
}

// recorded runs the program with probes: their addresses, their runs, and why parameters were left out.
func recorded(t *testing.T, path string, defs []*event.Def) (places []string, seen []run, leftOut map[string]string) {
	prog := testprog.Start(t, "setarch", "-R", "env", "-i", "GOGC=off", path)
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
	var evs []*kprobes.Event
	for _, d := range defs {
		es, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Skip: func(name string, err error) { t.Logf("%s: %v", name, err) }})
		if err != nil && d.Place.Kind != event.PlaceAddr {
			t.Fatal(err)
		}
		if err != nil {
			t.Logf("%s: %v", d.Text, err)
		}
		evs = append(evs, es...)
	}
	leftOut = map[string]string{}
	for _, e := range evs {
		at := fmt.Sprintf("%x", e.Place().Addr)
		places = append(places, at)
		e.LeftOut(func(param, why string) { leftOut[at+param] = why })
	}
	prog.Send("")
	for l := prog.Line(); l != "done"; l = prog.Line() {
	}
	err = core.Close(func(h *kprobes.Hit) {
		line, err := h.AppendArgs(nil, nil)
		if err != nil {
			t.Error(err)
		}
		r := run{At: fmt.Sprintf("%x", h.Event.Addr), Values: map[string]*string{}}
		for i, rest := len(h.Event.Prog.Args)-1, string(line); i >= 0; i-- {
			name := h.Event.Prog.Args[i].Name
			n := strings.LastIndex(rest, " "+name+"=")
			v := rest[n+len(name)+2:]
			r.Values[name], rest = &v, rest[:n]
		}
		seen = append(seen, r)
	})
	if err != nil {
		t.Error(err)
	}
	return places, seen, leftOut
}

// gdbRuns asks gdb for the parameters at the same functions.
func gdbRuns(t *testing.T, path string, places []string) (runs []run) {
	dir := t.TempDir()
	records := filepath.Join(dir, "records")
	if err := os.WriteFile(filepath.Join(dir, "places"), []byte(strings.Join(places, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gdb", "-nx", "-batch", "-x", "testdata/args.py", "--args", path)
	cmd.Env = append(os.Environ(), "PLACES="+filepath.Join(dir, "places"), "RECORDS="+records)
	cmd.Stdin = strings.NewReader("\n\n")
	if out, err := cmd.CombinedOutput(); err != nil || !regexp.MustCompile(`(?m)^done$`).Match(out) {
		t.Fatalf("gdb: %v\n%s", err, out)
	}
	text, err := os.ReadFile(records)
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var r run
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r)
	}
	return runs
}
