package kprobes_test

import (
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/ring"
	"kprobes.dev/kprobes/target/process"
)

// Counters can be put in and taken out for ever, though the ring has room for few events, and
// what each has counted stays with it.
func TestNumbersServeAgain(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "conform"))
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := process.Attach(p, &process.TargetOptions{Ring: ring.Config{Events: 8}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(nil); err != nil {
			t.Error(err)
		}
	})
	var was []*kprobes.Event
	for round := range 40 {
		var defs []*event.Def
		for _, text := range []string{"p:a target", "p:b target2", "p:c recursed"} {
			d, err := event.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			defs = append(defs, d)
		}
		evs, err := c.Add(defs, &kprobes.AddOptions{Count: true})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for range round + 1 {
			prog.Counts("target 9")
		}
		if n := c.Counts(evs[0]).Hits; n != uint64(round+1) {
			t.Fatalf("round %d: %d hits", round, n)
		}
		if n := c.Counts(evs[1]).Hits; n != 0 {
			t.Fatalf("round %d: %d hits of a function that was not called", round, n)
		}
		if err := c.Remove(evs); err != nil {
			t.Fatal(err)
		}
		was = append(was, evs[0])
	}
	for round, e := range was {
		if n := c.Counts(e).Hits; n != uint64(round+1) {
			t.Errorf("the event of round %d has counted %d", round, n)
		}
	}
}
