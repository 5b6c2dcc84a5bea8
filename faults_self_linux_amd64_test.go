//go:build !race

// Atomic handlers are not to be had under the race detector.

package kprobes_test

import (
	"strings"
	"testing"

	"kprobes.dev/kprobes"
)

//go:noinline
func faulty(a int) int { return a + 1 }

// A handler that goes wrong is abandoned, and its probe is disabled with the reason.
func TestSelfHandlerFails(t *testing.T) {
	var nothing *int
	var none map[string]int
	var some []int
	for name, bad := range map[string]func(){
		"nil dereference": func() { *nothing = 1 },
		"panic":           func() { panic("on purpose") },
		"nil map":         func() { none["x"] = 1 },
		"index":           func() { some[faulty(3)] = 1 },
		"division":        func() { some = make([]int, 1/len(some)) },
		"assertion":       func() { _ = any(some).(string) },
	} {
		t.Run(name, func(t *testing.T) {
			const fn = "kprobes.dev/kprobes_test.faulty"
			runs := 0
			k := &kprobes.Kprobe{SymbolName: fn, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
				runs++
				bad()
				runs += 100
				return 0
			}}
			if err := kprobes.RegisterKprobe(k); err != nil {
				t.Fatal(err)
			}
			defer kprobes.UnregisterKprobe(k)
			for i := range 10 {
				if faulty(i) != i+1 {
					t.Error("the probed function computes something else")
				}
			}
			if runs != 1 {
				t.Errorf("%d runs of the handler, want 1", runs)
			}
			err := k.Fault()
			t.Log(err)
			if err == nil || !strings.Contains(err.Error(), "disabled") {
				t.Errorf("fault: %v", err)
			}
		})
	}
}
