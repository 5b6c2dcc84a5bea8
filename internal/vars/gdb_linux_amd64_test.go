package vars_test

import (
	"bufio"
	"bytes"
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

// TestParametersAsGdb records $arg* of functions of optimised programs, and compares each value with what gdb says of a second
// run of the same program, which does the same.
func TestParametersAsGdb(t *testing.T) {
	c := func(name string) func(t *testing.T) string {
		return func(t *testing.T) string {
			path, err := cbuild.Build(os.DirFS("testdata"), ".", name)
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	for _, p := range []struct {
		name, pattern string
		build         func(t *testing.T) string
	}{
		{"C", "*", c("values")},
		{"C++", "shelf::*", c("books")},
		{"Rust", "jobs::*", rustJobs},
		{"Go", "main.*", goValues},
	} {
		t.Run(p.name, func(t *testing.T) { asGdb(t, p.build(t), p.pattern, p.name == "Go") })
	}
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

// asGdb probes the functions of a program that a pattern matches.
func asGdb(t *testing.T, path, pattern string, goProgram bool) {
	const functions = 20
	places, seen, leftOut := recorded(t, path, pattern)
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
		t.Fatalf("%d runs recorded, gdb saw %d", len(seen), len(told))
	}
	type share struct{ ours, gdb, all int }
	var sum share
	compared := map[string]bool{} // functions of which a parameter was compared
	wrong := map[string]bool{}    // told once
	heap := bijection{map[string]string{}, map[string]string{}}
	for i := range told {
		if seen[i].At != told[i].At {
			t.Fatalf("run %d: of %s, gdb saw %s", i, seen[i].At, told[i].At)
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

// bijection has the addresses of the same things in two runs of a Go program, whose heap is not laid out alike.
type bijection struct{ to, from map[string]string }

func (b *bijection) same(x, y string) bool {
	if b.to[x] == "" && b.from[y] == "" {
		b.to[x], b.from[y] = y, x
	}
	return b.to[x] == y
}

// recorded runs the program with $arg* at its functions: their addresses, their runs, and why parameters were left out.
func recorded(t *testing.T, path, pattern string) (places []string, seen []run, leftOut map[string]string) {
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
	d, err := event.Parse("p " + pattern + " $arg*")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Skip: func(name string, err error) { t.Logf("%s: %v", name, err) }})
	if err != nil {
		t.Fatal(err)
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
