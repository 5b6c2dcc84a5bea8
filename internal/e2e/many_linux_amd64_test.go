package e2e

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/target/process"
	tracing "kprobes.dev/kprobes/trace"
)

// TestMany probes all of 100,000 functions, at the entry and at the return: each counts what the program
// counts, and a record of an event beyond them is that event's.
func TestMany(t *testing.T) {
	const functions = 100_000
	p := program(t, "many")
	core := openWith(t, p, &process.TargetOptions{Events: ring.MaxEvents})
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

// TestManyTrampolines has all of 100,000 functions return by trampoline, each of which counts what the program
// counts, while few and while all are armed; afterwards none is there any more.
func TestManyTrampolines(t *testing.T) {
	const functions = 100_000
	p := program(t, "many")
	core := openWith(t, p, &process.TargetOptions{Events: ring.MaxEvents})
	var all []*kprobes.Event
	for i, pattern := range []string{"r many_1", "r many_[2-9]*", "r many_1?*", "r many_0"} {
		evs, err := core.Add(parsed(t, pattern), &kprobes.AddOptions{Count: true, Late: true, Trampoline: true})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, evs...)
		if n := p.Counts("go 1"); n["bad"] != 0 {
			t.Fatalf("the program counts %v", n)
		}
		if c := core.Counts(all[0]); c.Hits != uint64(i+1) || c.Missed != 0 {
			t.Errorf("%s, %d armed: %+v, want %d hits", all[0].Name, len(all), c, i+1)
		}
	}
	if len(all) != functions {
		t.Fatalf("%d events, want %d", len(all), functions)
	}
	before := make([]uint64, len(all))
	for i, e := range all {
		if how, _ := e.Returns(); how != kprobes.ReturnsTrampoline {
			t.Fatalf("%s returns by %s", e.Name, how)
		}
		before[i] = core.Counts(e).Hits
	}
	if n := p.Counts("go 3"); n["bad"] != 0 {
		t.Fatalf("the program counts %v", n)
	}
	for i, e := range all {
		if c := core.Counts(e); c.Hits != before[i]+3 || c.Missed != 0 || c.Unwound != 0 {
			t.Fatalf("%s: %+v, want %d hits", e.Name, c, before[i]+3)
		}
	}
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	if n := p.Counts("go 1"); n["bad"] != 0 {
		t.Errorf("afterwards the program counts %v", n)
	}
}

// TestManyHandlers has a handler at each of 100,000 functions, which is called as often as the function is.
func TestManyHandlers(t *testing.T) {
	const functions = 100_000
	p := program(t, "many")
	core := openWith(t, p, &process.TargetOptions{Events: ring.MaxEvents, HandlerWait: 10 * time.Second})
	calls := make([]atomic.Uint32, functions)
	ks := make([]*kprobes.Kprobe, functions)
	for i := range ks {
		ks[i] = &kprobes.Kprobe{SymbolName: fmt.Sprint("many_", i), PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
			calls[i].Add(1)
			return 0
		}}
	}
	if err := core.RegisterKprobes(ks); err != nil {
		t.Fatal(err)
	}
	if n := p.Counts("go 1"); n["calls"] != functions || n["bad"] != 0 {
		t.Fatalf("the program counts %v", n)
	}
	for i := range calls {
		if n := uint64(calls[i].Load()); n != 1 || ks[i].NMissed() != 0 {
			t.Fatalf("%s: %d calls of its handler, %d missed, want 1", ks[i].SymbolName, n, ks[i].NMissed())
		}
	}
	core.UnregisterKprobes(ks)
	if n := p.Counts("go 1"); n["bad"] != 0 {
		t.Errorf("afterwards the program counts %v", n)
	}
}
