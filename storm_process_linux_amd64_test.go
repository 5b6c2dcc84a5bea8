package kprobes_test

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
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
			c.Poll(func(*hit.Hit) {})
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

// An object that is away in the stop of a change, and back where it was when the target is looked at then, is no
// reason to refuse the change.
func TestObjectAwayForAMoment(t *testing.T) {
	_, h, c := hinder(t)
	var away atomic.Bool
	h.by(func(ch *target.Change) error {
		if away.Swap(false) {
			return fmt.Errorf("read of 5 bytes: %w", process.ErrFault)
		}
		return h.Target.Commit(ch)
	})
	away.Store(true)
	evs, err := c.Add(parse(t, "p first", "p second"), nil)
	must(t, err)
	away.Store(true)
	must(t, c.Close(nil))
	if n := c.Counts(evs[0]).Hits; n != 0 {
		t.Errorf("%d hits of a function that nobody calls", n)
	}
	if l, err := process.FindLeftover(h.Proc()); l != nil || err != nil {
		t.Errorf("left: %+v, %v", l, err)
	}
}

// Another object is where one was in the stop of a change, and that one is back when the target is looked at then: that is no
// reason to refuse the change either.
func TestObjectReplacedForAMoment(t *testing.T) {
	one, two := testprog.Build(t, "libdlone"), testprog.Build(t, "libdltwo")
	prog, c := attach(t, "dl")
	h := &hindered{Target: c.Target().(*process.Target)}
	c, err := kprobes.Open(h, nil)
	must(t, err)
	addr := prog.Counts("open " + one)["addr"]
	_, err = h.Refresh()
	must(t, err)
	var swap atomic.Bool
	swap.Store(true)
	h.by(func(ch *target.Change) error {
		if !swap.Swap(false) {
			return h.Target.Commit(ch)
		}
		prog.Ask("again "+two, nil)
		err := h.Target.Commit(ch)
		if n := prog.Counts("again " + one); n["addr"] != addr {
			t.Errorf("the object is at 0x%x, it was at 0x%x", n["addr"], addr)
		}
		if !errors.Is(err, unix.EFAULT) {
			t.Errorf("another object: %v", err)
		}
		return err
	})
	evs, err := c.Add(parse(t, "p libdlone:lib_work"), &kprobes.AddOptions{Count: true})
	must(t, err)
	if n := prog.Counts("call 7"); n["bad"] != 0 || c.Counts(evs[0]).Hits != 7 {
		t.Errorf("the program says %v; %+v", n, c.Counts(evs[0]))
	}
	must(t, c.Close(nil))
}

// A thread waits for Sync in the loader, with a clock so coarse that it would wait for seconds, as on a machine that has much else
// to do: Close, or who takes out what a killed tracer has left, lets it go on.
func TestLoaderLetGo(t *testing.T) {
	lib := testprog.Build(t, "libdlone")
	for name, end := range map[string]func(*kprobes.Core, *process.Proc) error{
		"close": func(c *kprobes.Core, _ *process.Proc) error { return c.Close(nil) },
		"detach": func(c *kprobes.Core, p *process.Proc) error {
			l, err := process.FindLeftover(p)
			if err != nil {
				return err
			}
			if _, err = l.Undo(); err != nil {
				return err
			}
			if err := c.Close(nil); !errors.Is(err, process.ErrDetached) {
				return fmt.Errorf("close: %v, want %v", err, process.ErrDetached)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			prog := testprog.Start(t, testprog.Build(t, "dl"))
			must(t, os.WriteFile(fmt.Sprintf("/proc/%d/timerslack_ns", prog.PID), []byte("20000000"), 0))
			p, err := process.OpenUnwaited(prog.PID)
			must(t, err)
			defer p.Close()
			tg, err := process.Attach(p, nil)
			must(t, err)
			c, err := kprobes.Open(tg, nil)
			must(t, err)
			_, err = c.Add(parse(t, "p libdlone:lib_work"), &kprobes.AddOptions{Late: true})
			must(t, err)
			prog.Send("open " + lib)
			eventually(t, "the loader waits", func() bool {
				c.Poll(func(*hit.Hit) {})
				return c.Stats().Pending
			})
			if err := end(c, p); err != nil {
				t.Error(err)
			}
			prog.Line()
			if n := prog.Counts("call 5"); n["lib_work"] != 5 || n["bad"] != 0 {
				t.Errorf("the program says %v", n)
			}
		})
	}
}
