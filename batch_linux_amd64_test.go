package kprobes_test

import (
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// All functions of a program at once, entries and returns, by the package's own interface:
// their analysis and code are made by several goroutines, and every function's counts are
// the program's.
func TestAllFunctionsAtOnce(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "work"), "4")
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	var defs []*event.Def
	for _, text := range []string{"p *", "r f_*"} {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	for round := range 3 {
		evs, err := c.Add(defs, &kprobes.AddOptions{Count: round == 1, Skip: func(name string, why error) { t.Logf("%s: %v", name, why) }})
		if err != nil {
			t.Fatal(err)
		}
		if len(evs) < 30 {
			t.Errorf("%d events, want one for every function, and for every f_ another", len(evs))
		}
		compared := 0
		before, after := prog.Counts("count"), prog.Counts("go 50")
		for _, e := range evs {
			fn := e.Place().Symbol
			n, ok := after[fn]
			if !ok {
				continue
			}
			compared++
			n -= before[fn]
			for end := time.Now().Add(time.Minute); c.Counts(e).Hits < n && time.Now().Before(end); {
				c.Poll(func(*hit.Hit) {}) // of other processors' clocks some run a little behind
			}
			if hits := c.Counts(e).Hits; hits != n {
				t.Errorf("round %d: %s %s: %d hits, the program counts %d", round, e.Def.Text, fn, hits, n)
			}
		}
		if compared < 20 {
			t.Errorf("only %d events have a count of the program to compare with", compared)
		}
		if err := c.Remove(evs); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(nil); err != nil {
		t.Fatal(err)
	}
	if n := prog.Counts("go 10"); n["bad"] != 0 {
		t.Errorf("%d wrong results", n["bad"])
	}
}
