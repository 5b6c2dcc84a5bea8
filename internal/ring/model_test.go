package ring

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestModel lets spin search every state of the protocols in model/, and every state of
// the same with one mistake until the mistake shows. protocol.go says what is modelled. A CPU that keeps the order of
// stores does nothing that one that orders nothing by itself (WEAK) can not do: what holds there holds on it.
func TestModel(t *testing.T) {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is needed to check the protocols: install Debian's package %s", tool, tool)
		}
	}
	for _, c := range []struct {
		model   string
		defines string
		holds   bool
	}{
		{"rseq", "PUBLISH_FIRST", false},
		{"rseq", "NO_RESTART", false},
		{"rseq", "TAIL_EARLY", false},
		{"rseq", "LOSS_SILENT", false},
		{"rseq", "WEAK", true},
		{"rseq", "WEAK R5_PLAIN", false},
		{"rseq", "WEAK C1_PLAIN", false},
		{"rseq", "WEAK R2_PLAIN", false},
		{"rseq", "WEAK TAIL_EARLY", false},
		{"locked", "NO_HANDLER RUNS=2", true},
		{"locked", "COMMIT_FIRST", false},
		{"locked", "ZERO_LATE", false},
		{"locked", "UNLOCKED", false},
		{"locked", "REAP_BLIND", false},
		{"locked", "COUNT_HOLE", false},
		{"locked", "WEAK", true},
		{"locked", "WEAK L5_PLAIN", false},
		{"locked", "WEAK D2_PLAIN", false},
		{"locked", "WEAK D5_PLAIN", false},
	} {
		t.Run(c.model+" "+c.defines, func(t *testing.T) {
			t.Parallel()
			checkModel(t, c.model, strings.Fields(c.defines), c.holds)
		})
	}
}

var panErrors = regexp.MustCompile(`errors: (\d+)`)

// checkModel makes a verifier of the model, runs it, and compares whether it finds an
// error. A search that was cut short proves nothing and fails.
func checkModel(t *testing.T, model string, defines []string, holds bool) {
	source, err := filepath.Abs(filepath.Join("model", model+".pml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	args := []string{"-a"}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	run("spin", append(args, source)...)
	opt := "-O0" // a mistake shows soon: compiling takes longer than searching
	if holds {
		opt = "-O1"
	}
	run("gcc", "-w", opt, "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=4096", "-o", "pan", "pan.c")
	out := run("./pan", "-m100000")
	found := panErrors.FindStringSubmatch(out)
	if found == nil || strings.Contains(out, "max search depth too small") || strings.Contains(out, "Search not completed") && holds {
		t.Fatalf("the search is not complete:\n%s", out)
	}
	if (found[1] == "0") == holds {
		return
	}
	if !holds {
		t.Fatalf("the mistake was not found:\n%s", out)
	}
	t.Fatalf("the protocol does not hold:\n%s\n%s", out, run("spin", append(trail(defines), source)...))
}

// trail are the arguments to print how an error comes about.
func trail(defines []string) []string {
	args := []string{"-t", "-p", "-g"}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	return args
}
