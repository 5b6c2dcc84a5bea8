package e2e

import (
	"fmt"
	"testing"
)

// stackNeeds is what a probe at a function's entry takes of its thread's stack, in bytes below the stack pointer, as
// docs/kprobe-trace.md has it.
var stackNeeds = []struct {
	name, probe string
	count, bad  bool
	bytes       int
}{
	{"counter", "p:a hit", true, false, 152},
	{"registers", "p:a hit v=%di w=%si f=%sp", false, false, 176},
	{"load", "p:a hit v=+0(%di):u64", false, false, 272},
	{"bad load", "p:a hit v=+0(%di):u64", false, true, 272},
	{"string", "p:a hit v=+0(%di):string", false, false, 280},
	{"bad string", "p:a hit v=+0(%di):string", false, true, 280},
	{"loads", "p:a hit v=+0(%di):u64 s=+0(%di):string", false, false, 256},
	{"return", "r:a hit v=$retval", false, false, 208},
}

// TestSmallStacks: a probe takes no more of the stack than the manual says, also where a pointer is bad.
func TestSmallStacks(t *testing.T) {
	for _, c := range stackNeeds {
		t.Run(c.name, func(t *testing.T) {
			p := program(t, "scant")
			core := open(t, p)
			e := armsText(t, core, c.probe, c.count)
			bad := 0
			if c.bad {
				bad = 1
			}
			n := p.Counts(fmt.Sprint("room ", c.bytes, " ", bad))
			exact(t, core, e, n["hit"])
		})
	}
}
