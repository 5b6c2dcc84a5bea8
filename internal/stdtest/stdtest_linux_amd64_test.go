// Package stdtest runs the tests of packages of the standard library, as they come with Go,
// in programs that probe all functions of the package under test.
package stdtest

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// long is set where all packages are to be tested: it takes minutes.
var long = os.Getenv("KPROBES_E2E_LONG") != ""

// patience bounds each run of a package's tests. Nothing measures it.
const patience = 20 * time.Minute

// Of a hundred functions of a package so many must take each kind of probe.
const percent = 97

// std is a package of the standard library.
type std struct {
	path  string
	usual bool     // it is tested without KPROBES_E2E_LONG too, with -short then
	short bool     // its tests run with -short even with KPROBES_E2E_LONG
	edits []string // file, text and what it becomes, in that order, of the package's tests
}

var packages = []std{
	{path: "sort"},
	{path: "strings", usual: true},
	{path: "compress/flate", usual: true},
	{path: "encoding/json"},
	{path: "regexp"},
	{path: "net/http", edits: leakCheck},
	{path: "sync"},
	{path: "context"},
	{path: "time"},
}

// leakCheck has the tests of net/http look away from the goroutines that a Core keeps while
// there are probes: they count all goroutines that are left when they end.
var leakCheck = []string{
	"main_test.go", `if stack == "" ||`, `if stack == "" || strings.Contains(stack, "kprobes.dev/kprobes/internal/engine.(*Core).startReaper") || strings.Contains(stack, "kprobes.dev/kprobes/target/self.watchLoop") ||`,
}

// Kinds of probes, as the report names them.
const (
	kindEvent     = "event"
	kindKprobe    = "kprobe"
	kindKretprobe = "kretprobe"
)

// report is what the program that testdata/probes_test.go is part of writes.
type report struct {
	Functions int               // of the package, as far as they are in the program
	Armed     map[string]int    // those of them that have a probe, by kind
	Hit       map[string]int    // those that were run
	Hits      map[string]uint64 // runs
	Missed    map[string]uint64 // runs that were counted as missed
	Refused   []refusal
	Traps     []refusal // functions whose Kprobe takes a trap, and why
	Wrong     []string  // what must not be
}

// refusal is a function in which a probe can not stand.
type refusal struct{ Kind, Name, Why string }

// TestStandardLibrary: the tests of packages of the standard library have the same results
// with a counter event, a Kprobe with an atomic handler and a Kretprobe with two on each of
// the package's functions.
func TestStandardLibrary(t *testing.T) {
	for _, p := range packages {
		if !p.usual && !long {
			continue
		}
		t.Run(path.Base(p.path), func(t *testing.T) {
			bin := p.build(t)
			plain := p.test(t, bin, "")
			file := filepath.Join(t.TempDir(), "report")
			probed := p.test(t, bin, file)
			same(t, plain, probed)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("no report was written: %v", err)
			}
			var r report
			if err := json.Unmarshal(b, &r); err != nil {
				t.Fatal(err)
			}
			r.check(t)
		})
	}
}

// build builds the package's tests with our file among them and returns the program.
func (p *std) build(t *testing.T) string {
	t.Helper()
	dir, src := t.TempDir(), p.source(t)
	replace := map[string]string{}
	add := func(name, text string) {
		to := filepath.Join(dir, name)
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(src, name)] = to
	}
	const ours = "probes_test.go"
	if _, err := os.Stat(filepath.Join(src, ours)); err == nil {
		t.Fatalf("%s has a file %s: ours needs another name", src, ours)
	}
	add(ours, edited(t, "package probes_test\n", "package "+path.Base(p.path)+"_test\n", filepath.Join("testdata", ours)))
	for e := range slices.Chunk(p.edits, 3) {
		add(e[0], edited(t, e[1], e[2], filepath.Join(src, e[0])))
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay, bin := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "std.test")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", bin, p.path)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, msg)
	}
	return bin
}

// source is the directory of the package.
func (p *std) source(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", p.path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// edited is a file's text with one piece replaced.
func edited(t *testing.T, from, to, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), from); n != 1 {
		t.Fatalf("%s: %q is there %d times, want once", name, from, n)
	}
	return strings.Replace(string(b), from, to, 1)
}

// test runs the package's tests where they expect to, and returns their output. A report
// asks for probes.
func (p *std) test(t *testing.T, bin, report string) string {
	t.Helper()
	args := []string{"-test.v"}
	if p.short || !long {
		args = append(args, "-test.short")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = p.source(t)
	cmd.Env = append(os.Environ(), "KPROBES_STDTEST_PACKAGE="+p.path, "KPROBES_STDTEST_REPORT="+report)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it tells where its goroutines are
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the tests of %s, report %q: %v\n%s", p.path, report, err, tail(string(out)))
	}
	return string(out)
}

// tail is the end of an output, which has the reason why it ended.
func tail(s string) string {
	const most = 20_000
	if i := strings.LastIndex(s, "\nfatal error: "); i >= 0 {
		return s[i:][:min(len(s)-i, most)]
	}
	return s[max(0, len(s)-most):]
}

// result is a line that tells of a test.
var result = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP|FAIL): (\S+) `)

// same compares what two runs say of each test.
func same(t *testing.T, plain, probed string) {
	t.Helper()
	results := func(out string) map[string]string {
		all := map[string]string{}
		for _, m := range result.FindAllStringSubmatch(out, -1) {
			all[m[2]] = m[1]
		}
		return all
	}
	was, is := results(plain), results(probed)
	for name, r := range was {
		if is[name] != r {
			t.Errorf("%s: %s without probes, %s with them", name, r, cmp.Or(is[name], "not run"))
		}
	}
	for name := range is {
		if was[name] == "" {
			t.Errorf("%s: not run without probes", name)
		}
	}
	t.Logf("%d tests and parts of tests", len(was))
	if len(was) < 10 {
		t.Errorf("the package has more tests than these: %v", was)
	}
}

// check checks that the probes were there, and have counted.
func (r *report) check(t *testing.T) {
	t.Helper()
	for _, w := range r.Wrong {
		t.Error(w)
	}
	for _, kind := range []string{kindEvent, kindKprobe, kindKretprobe} {
		armed := r.Armed[kind]
		t.Logf("%-9s armed in %d of %d functions, %d of these were run, %d times, and %d missed", kind, armed, r.Functions, r.Hit[kind], r.Hits[kind], r.Missed[kind])
		if armed*100 < r.Functions*percent || armed == 0 {
			t.Errorf("%s: %d of %d functions: less than %d %%", kind, armed, r.Functions, percent)
		}
		if r.Hit[kind]*3 < armed || r.Hits[kind] == 0 {
			t.Errorf("%s: %d of %d functions were run: the tests run more", kind, r.Hit[kind], armed)
		}
	}
	for _, f := range append(r.Refused, r.Traps...) {
		t.Logf("%s: no %s: %s", f.Name, f.Kind, f.Why)
		if len(f.Why) < 20 {
			t.Errorf("%s: no %s, and no reason", f.Name, f.Kind)
		}
	}
}
