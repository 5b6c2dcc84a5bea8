package kprobes_test

import (
	"errors"
	"testing"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// few attaches to a program, with a ring that has room for few events.
func few(t *testing.T, name string) (*testprog.Proc, *kprobes.Core) {
	t.Helper()
	prog := testprog.Start(t, testprog.Build(t, name, "-pthread"))
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := process.Attach(p, &process.TargetOptions{Events: 16}) // the engine's own probes take half of it
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
	return prog, c
}

// Counters can be put in and taken out for ever, though the ring has room for few events, and
// what each has counted stays with it.
func TestNumbersServeAgain(t *testing.T) {
	prog, c := few(t, "conform")
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

// Events that were refused take no room in the ring.
func TestRefusedTakeNoRoom(t *testing.T) {
	prog, c := few(t, "sequence")
	add := func(o *kprobes.AddOptions, texts ...string) ([]*kprobes.Event, error) {
		var defs []*event.Def
		for _, text := range texts {
			d, err := event.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			defs = append(defs, d)
		}
		return c.Add(defs, o)
	}
	for round := range 20 {
		// No jump fits where add's loop comes back to its third byte.
		_, err := add(&kprobes.AddOptions{Tactic: arch.TacticJump}, "p:a main $comm", "r4:b main $retval", "p:c add")
		if !errors.Is(err, kprobes.ErrRegister) {
			t.Fatalf("round %d: %v, want one that is refused", round, err)
		}
	}
	if evs := c.Events(); len(evs) != 0 {
		t.Errorf("%d events, all were refused", len(evs))
	}
	evs, err := add(&kprobes.AddOptions{Tactic: arch.TacticBoost}, "p:a add $comm", "r4:b add $retval", "p:c main")
	if err != nil {
		t.Fatal(err)
	}
	n := prog.Counts("go 100")["add"]
	eventually(t, "the records are read", func() bool { // some are held back until their order is known
		c.Poll(func(*hit.Hit) {})
		return c.Counts(evs[0]).Hits >= n && c.Counts(evs[1]).Hits >= n
	})
	for i, want := range []uint64{n, n, 0} {
		if got := c.Counts(evs[i]); got.Hits != want || n == 0 {
			t.Errorf("event %s has counted %+v, the program %d", evs[i].Name, got, want)
		}
	}
}
