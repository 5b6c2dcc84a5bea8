package engine

import (
	"fmt"
	"os"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// A call whose return came while the patches were gone leaves its instance. Once they stand again a later call on the same
// stack, whose entry was not seen, must not be recorded with what the earlier one's entry has kept.
func TestReturnOfCallBeforePatchesWent(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "leaver"))
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := event.Parse("r:b inside depth=$arg1")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := c.Add([]*event.Def{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", prog.PID), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	prog.Counts("hold 1")
	c.mu.Lock() // nothing is armed anew before both calls have passed
	f := evs[0].fn
	if evs[0].byStub || len(f.sites) < 2 {
		t.Errorf("%d sites, by stub: %v", len(f.sites), evs[0].byStub)
	}
	for _, s := range f.sites {
		if _, err := mem.WriteAt(s.Orig, int64(s.Addr)); err != nil {
			t.Error(err)
		}
	}
	prog.Counts("free")
	prog.Counts("hold 1")
	err = c.rearm([]*function{f})
	c.mu.Unlock()
	if err != nil {
		t.Error(err)
	}
	prog.Counts("free")
	n := prog.Counts("call 3")
	if err := c.Close(nil); err != nil {
		t.Error(err)
	}
	if got := c.Counts(evs[0]); got.Hits != 3 || n["bad"] != 0 {
		t.Errorf("%+v, want 3 hits: the calls whose entry and return were seen; the program: %v", got, n)
	}
}
