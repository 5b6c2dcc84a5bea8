package process_test

import (
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// TestAnswer: a thread that has waited in vain is counted once, and the next one waits; where a filter forbids the wait no answer has
// threads wait again.
func TestAnswer(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "dl"))
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
	d, err := event.Parse("p:back back")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Add([]*event.Def{d}, nil); err != nil {
		t.Fatal(err)
	}
	const inVain, forbidden = 1, 2
	for before, after := range map[uint64]uint64{0: 0, inVain: 0, forbidden: forbidden, inVain | forbidden: forbidden} {
		if err := tg.SetWaitWord(before); err != nil {
			t.Fatal(err)
		}
		if late, err := tg.Answer(); late != (before&inVain != 0) || err != nil {
			t.Errorf("%d: %v, %v", before, late, err)
		}
		if now, err := tg.WaitWord(); now != after || err != nil {
			t.Errorf("%d becomes %d, %v, want %d", before, now, err, after)
		}
	}
	if err := c.Close(nil); err != nil {
		t.Error(err)
	}
}
