package kprobes_test

import (
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
	"kprobes.dev/kprobes/trace"
)

// TestObjectsComeAndGo attaches to a program of which two threads load and unload objects all the time,
// and leaves it: objects that go between the analysis of their code and the change are no reason to
// refuse the rest, nor to leave anything behind.
func TestObjectsComeAndGo(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "dl"))
	libs := []string{testprog.Build(t, "libdlone"), testprog.Build(t, "libdltwo")}
	for _, lib := range libs {
		prog.Send("storm " + lib)
		prog.Line()
	}
	for round := range 12 {
		p, err := process.OpenUnwaited(prog.PID)
		if err != nil {
			t.Fatal(err)
		}
		tg, err := process.Attach(p, nil)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		c, err := kprobes.Open(tg, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Add(parse(t, "p libdlone:lib_work", "p libdltwo:lib_work", "p libc.so.6:dlopen"), &kprobes.AddOptions{Late: true})
		if err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		for range 20 {
			c.Poll(func(*trace.Hit) {})
			if err := c.Sync(); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		if err := c.Close(nil); err != nil {
			t.Errorf("round %d: close: %v", round, err)
		}
		if l, err := process.FindLeftover(p); l != nil || err != nil {
			t.Errorf("round %d: left: %+v, %v", round, l, err)
		}
		p.Close()
	}
	if n := prog.Counts("count"); n["bad"] != 0 || n["storms"] == 0 {
		t.Errorf("the program says %v", n)
	}
}
