package process_test

import (
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// TestStopsOfSession counts the stops of all threads in a session, since each is a stall: one prepares, one arms the
// engine's own probes and those that are asked for, one takes all out. That of a single thread is none.
func TestStopsOfSession(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "crowd"), "50")
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	stops, told, worked := 0, 0, false
	process.OnStep(func(what string) {
		switch what {
		case "interrupt":
			told++
		case "syscall", "write":
			worked = true
		case "detach": // an attempt that a thread did not arrive for has done nothing
			if told > 1 && worked {
				stops++
			}
			told, worked = 0, false
		}
	})
	defer process.OnStep(nil)
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := event.Parse("p f_00* a=%di")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := c.Add([]*event.Def{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(evs) != 100 || stops != 2 {
		t.Errorf("%d events took %d stops, want 100 and 2", len(evs), stops)
	}
	if n := prog.Counts("all 3")["calls"]; n != 30000 {
		t.Errorf("%d calls", n)
	}
	if err := c.Close(nil); err != nil {
		t.Fatal(err)
	}
	if stops != 3 {
		t.Errorf("a session takes %d stops, want 3", stops)
	}
	for _, e := range evs {
		if n := c.Counts(e).Hits; n != 3 {
			t.Fatalf("%s was counted %d times, not 3", e.Name, n)
		}
	}
}
