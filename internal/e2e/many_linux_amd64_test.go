package e2e

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/ring"
	"kprobes.dev/kprobes/target/process"
	tracing "kprobes.dev/kprobes/trace"
)

// TestMany probes all of 100,000 functions, at the entry and at the return: each counts what the program
// counts, and a record of an event beyond them is that event's.
func TestMany(t *testing.T) {
	const functions = 100_000
	p := program(t, "many")
	core := openWith(t, p, &process.TargetOptions{Ring: ring.Config{Events: ring.MaxEvents}})
	evs, err := core.Add(parsed(t, "p many_*", "r many_*"), &kprobes.AddOptions{Count: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(evs) != 2*functions {
		t.Fatalf("%d events, want %d", len(evs), 2*functions)
	}
	last, err := core.Add(parsed(t, "p:last many_99999 a=%di:u64"), nil)
	if err != nil {
		t.Fatal(err)
	}
	n := p.Counts("go 3")
	if n["calls"] != 3*functions || n["bad"] != 0 {
		t.Fatalf("the program counts %v", n)
	}
	for _, e := range evs {
		if c := core.Counts(e); c.Hits != 3 || c.Missed != 0 {
			t.Fatalf("%s: %+v, want 3 hits", e.Name, c)
		}
	}
	var got []string
	within(t, "three records", func() bool {
		core.Poll(func(h *tracing.Hit) {
			got = append(got, fmt.Sprint(h.Event.Name, " ", binary.LittleEndian.Uint64(h.Rec[len(h.Rec)-8:])))
		})
		return len(got) >= 3
	})
	if want := []string{"last 0", "last 7", "last 14"}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
	if err := core.Remove(append(evs, last...)); err != nil {
		t.Fatal(err)
	}
	if n := p.Counts("go 1"); n["bad"] != 0 {
		t.Errorf("afterwards the program counts %v", n)
	}
}
