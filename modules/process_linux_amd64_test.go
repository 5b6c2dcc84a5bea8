package modules_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/modules"
	"kprobes.dev/kprobes/target/process"
)

// TestProcess loads a module into another process.
func TestProcess(t *testing.T) {
	program := testprog.Start(t, testprog.BuildLive(t, "gowork"), "4")
	p, err := process.OpenUnwaited(program.PID)
	if err != nil {
		t.Fatal(err)
	}
	target, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(target, nil)
	if err != nil {
		t.Fatal(err)
	}
	table, err := modules.Of(core)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := modules.Of(core); again != table || err != nil {
		t.Errorf("another table: %v, %v", again, err)
	}
	text, err := os.ReadFile("../internal/e2e/testdata/goints.c")
	if err != nil {
		t.Fatal(err)
	}
	m, err := table.Insert("goints", bytes.NewReader(source(t, "goints", string(text))))
	if err != nil {
		t.Fatal(err)
	}
	n := program.Counts("count")["main.Ints"]
	program.Counts("go 1500")
	program.Counts("gc")
	n = program.Counts("count")["main.Ints"] - n
	if lines, want := remove(t, table, m), fmt.Sprintf("calls=%d returned=%d wrong=0 missed=0", n, n); last(lines) != want || n == 0 {
		t.Errorf("%q, want %s", lines, want)
	}
	program.Quit(new(map[string]uint64))
	for l := range table.Lines(context.Background()) { // it ends with the process
		t.Errorf("a line more: %q", l.Text)
	}
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
}
