package kprobes_test

import (
	"fmt"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/conformance"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// attach starts a program and opens it as a target.
func attach(t *testing.T, name string, args ...string) (*testprog.Proc, *kprobes.Core) {
	t.Helper()
	return attachTo(t, testprog.Build(t, name), args...)
}

// attachTo is attach for a program that was built.
func attachTo(t *testing.T, path string, args ...string) (*testprog.Proc, *kprobes.Core) {
	t.Helper()
	prog := testprog.Start(t, path, args...)
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := process.Attach(p, &process.TargetOptions{HandlerWait: handlerWait})
	if err != nil {
		t.Fatal(err)
	}
	c, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(nil); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return prog, c
}

// handlerWait is what a handler may take on a machine that has much else to do: the longest that
// there is (process.TargetOptions).
const handlerWait = 60e9

// TestConformanceProcess puts a process to the cases of the kernel's unit tests.
func TestConformanceProcess(t *testing.T) {
	prog, c := attach(t, "conform")
	conformance.Run(t, &conformance.Env{
		Core:   c,
		Symbol: func(fn string) string { return fn },
		Call:   func(fn string, v uint64) uint64 { return prog.Counts(fmt.Sprint(fn, " ", v))["value"] },
		Without: map[string]string{
			"test_kprobe_missed": "handlers run in the tracer: what they call is not the probed process's",
			"test_jprobe":        "the arguments' pointers belong to another address space",
			"test_jprobes":       "the arguments' pointers belong to another address space",
		},
	})
}
