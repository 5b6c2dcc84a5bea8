package engine

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// lastTrampoline has its process end before the first trampoline is made.
type lastTrampoline struct {
	target.ReturnReplacer
	end   func()
	asked int
}

func (l *lastTrampoline) Trampoline(fn uint64) (*arch.Trampoline, error) {
	if l.asked++; l.asked == 1 {
		l.end()
	}
	return l.ReturnReplacer.Trampoline(fn)
}

// A process that ends while trampolines are made for the functions of a pattern ends the addition: no function
// is tried after that, and none is left out for a reason that is not its own.
func TestEndsBeforeTrampolines(t *testing.T) {
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
	last := &lastTrampoline{ReturnReplacer: c.can.ReturnReplacer, end: func() {
		if err := p.Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
		<-p.Exited()
	}}
	c.can.ReturnReplacer = last
	d, err := event.Parse("r *")
	if err != nil {
		t.Fatal(err)
	}
	skipped := map[string]error{}
	o := &AddOptions{Trampoline: true, Count: true, Late: true, Skip: func(name string, why error) {
		if last.asked > 0 {
			skipped[name] = why
		}
	}}
	if evs, err := c.Add([]*event.Def{d}, o); !errors.Is(err, target.ErrGone) {
		t.Errorf("%d events, %v, want %v", len(evs), err, target.ErrGone)
	}
	if last.asked != 1 || len(skipped) > 0 {
		t.Errorf("%d trampolines were asked for, want 1; left out then: %v", last.asked, skipped)
	}
	if err := c.Close(nil); err != nil && !errors.Is(err, target.ErrGone) {
		t.Error(err)
	}
}

// A call whose return came while the patches were gone leaves its instance. Once they stand again a later call on the same
// stack, whose entry was not seen, must not be recorded with what the earlier one's entry has kept.
func TestReturnOfCallBeforePatchesWent(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "leaver"))
	c := attached(t, prog.PID)
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
