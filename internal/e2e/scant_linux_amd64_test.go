package e2e

import (
	"fmt"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
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
	{"stack", "p:a hit v=%di", false, false, 280},
}

// TestSmallStacks: a probe takes no more of the stack than the manual says, also where a pointer is bad.
func TestSmallStacks(t *testing.T) {
	for _, c := range stackNeeds {
		t.Run(c.name, func(t *testing.T) {
			p := program(t, "scant")
			core := open(t, p)
			e := armsText(t, core, c.probe, c.count, func(d *event.Def) {
				if c.name == "stack" {
					d.Stack = 8
				}
			})
			bad := 0
			if c.bad {
				bad = 1
			}
			n := p.Counts(fmt.Sprint("room ", c.bytes, " ", bad))
			exact(t, core, e, n["hit"])
		})
	}
}

// TestStandsOnScantStack: a thread stands so near the end of its stack, in a mapping of its own or an alternate one,
// that what it calls has no room for a probe. The probe waits, with the reason, and is armed once the thread is
// elsewhere; with as much room as a probe takes it is armed at once.
func TestStandsOnScantStack(t *testing.T) {
	for _, c := range []struct {
		command string
		left    int
		waits   bool
	}{{"stand", 312, true}, {"stand", 328, false}, {"alternate", 16, true}, {"alternate", 312, true}, {"alternate", 328, false}} {
		t.Run(fmt.Sprint(c.command, " ", c.left), func(t *testing.T) {
			p := program(t, "scant")
			p.Send(fmt.Sprint(c.command, " ", c.left))
			if got := p.Line(); got != "standing" {
				t.Fatal(got)
			}
			core := open(t, p)
			evs := add(t, core, "", "p:a hit v=%di")
			why := core.Stats().Why
			if want := fmt.Sprintf("it has %d bytes of stack left there, and a probe takes up to 320", c.left); c.waits != (len(why) == 1 && strings.Contains(why[0], want)) {
				t.Errorf("waits: %q", why)
			}
			p.Counts("") // it goes on, and calls hit
			n := uint64(2)
			if c.waits {
				n--
				within(t, "the probe", func() bool { tactic, _ := evs[0].Form(); return tactic == "jump" })
			}
			p.Counts("room 1024 0")
			if err := core.Close(nil); err != nil {
				t.Error(err)
			}
			if got := core.Counts(evs[0]); got.Hits != n {
				t.Errorf("%+v, want %d hits", got, n)
			}
		})
	}
}
