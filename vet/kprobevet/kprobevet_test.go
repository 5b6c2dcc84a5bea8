package kprobevet

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

func TestAnalyzer(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), Analyzer, "a")
}

// cell is a row's second column in docs/HANDLERS.md.
func (op *operation) cell() string {
	words := append([]string(nil), op.words...)
	for _, c := range op.calls {
		words = append(words, "`"+c+"`")
	}
	return strings.Join(words, ", ")
}

// TestList holds the table of the analyzer and the list in the documents together.
func TestList(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "HANDLERS.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(string(text), -1) {
		listed[m[1]] = m[2]
	}
	for i := range operations {
		op := &operations[i]
		if got, want := listed[op.name], op.cell(); got != want {
			t.Errorf("%s: the list has\n%s\nthe analyzer\n%s", op.name, got, want)
		}
		if op.instead == "" {
			t.Errorf("%s: nothing that could be done instead", op.name)
		}
		delete(listed, op.name)
	}
	for name := range listed {
		t.Errorf("%s: in the list, and not looked for", name)
	}
}

// TestVettool runs the command as go vet runs it, over a module of its own.
func TestVettool(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "kprobevet")
	if msg, err := exec.Command("go", "build", "-o", tool, "../cmd/kprobevet").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	stub, err := os.ReadFile("testdata/src/kprobes.dev/kprobes/kprobes.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":             "module example.com/m\n\ngo 1.25\n\nrequire kprobes.dev/kprobes v0.0.0\n\nreplace kprobes.dev/kprobes => ./kprobes\n",
		"kprobes/go.mod":     "module kprobes.dev/kprobes\n\ngo 1.25\n",
		"kprobes/kprobes.go": string(stub),
		"m.go":               "package m\n\nimport (\n\t\"time\"\n\n\t\"kprobes.dev/kprobes\"\n)\n\nvar J = kprobes.Jprobe{Entry: func(int) { time.Sleep(1) }}\n",
	} {
		path := filepath.Join(dir, "m", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "vet", "-vettool="+tool, "./...")
	cmd.Dir = filepath.Join(dir, "m")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "m.go:9:43: sleep: time.Sleep in an atomic handler, Jprobe.Entry") {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
}
