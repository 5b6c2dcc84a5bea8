package kprobes_test

import (
	"bytes"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// TestRemoveAgain: somebody else traces the program when events are removed, so that their code
// stays. It goes with the next removal, though there is nothing left to remove.
func TestRemoveAgain(t *testing.T) {
	prog, c := attach(t, "stand")
	orig := originals(t, c, "first", "second")
	evs := addEvents(t, c, &kprobes.AddOptions{Count: true}, "p:one first", "p:two second")
	at := map[string]uint64{"first": addrOf(t, c, "first"), "second": addrOf(t, c, "second")}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(t, unix.PtraceSeize(prog.PID))
	if err := c.Remove(evs); err == nil {
		t.Error("removed from a program that somebody else traces")
	}
	must(t, unix.PtraceInterrupt(prog.PID))
	if _, err := unix.Wait4(prog.PID, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	must(t, unix.PtraceDetach(prog.PID))
	if b := bytesAt(t, c, at["first"]); b[0] != byJump {
		t.Errorf("% x stands at first, want the jump that could not be taken out", b)
	}
	must(t, c.Remove(evs))
	for fn, addr := range at {
		if b := bytesAt(t, c, addr); !bytes.Equal(b, orig[fn]) {
			t.Errorf("%s: % x is left, want % x", fn, b, orig[fn])
		}
	}
	before := c.Counts(evs[0])
	prog.Counts("go 10")
	if now := c.Counts(evs[0]); now != before {
		t.Errorf("%+v after the removal, %+v before", now, before)
	}
}

// hindered is a target whose changes a test may hinder.
type hindered struct {
	*process.Target
	commit atomic.Pointer[func(*target.Change) error] // the optimiser calls it too; nil: nothing is in the way
}

func (h *hindered) Commit(c *target.Change) error {
	if f := h.commit.Load(); f != nil {
		return (*f)(c)
	}
	return h.Target.Commit(c)
}

// by lets f make the changes from now on.
func (h *hindered) by(f func(*target.Change) error) { h.commit.Store(&f) }

// hinder starts a program whose changes can be hindered.
func hinder(t *testing.T) (*testprog.Proc, *hindered, *kprobes.Core) {
	t.Helper()
	prog, c := attach(t, "stand")
	h := &hindered{Target: c.Target().(*process.Target)}
	c, err := kprobes.Open(h, nil)
	must(t, err)
	return prog, h, c
}

// TestRegisterHalfMade: of two functions the code is put into one, when the other's, which owes a
// removal, can not be taken out. The registration fails; what is in does nothing any more, belongs
// to nobody else's handlers, and goes as soon as it can.
func TestRegisterHalfMade(t *testing.T) {
	prog, h, c := hinder(t)
	orig := originals(t, c, "first", "second", "third")
	first := addrOf(t, c, "first")
	evs := addEvents(t, c, &kprobes.AddOptions{Count: true}, "p:one second", "p:two second")
	blocked := &target.BusyError{TID: prog.PID, Why: "a test"}
	h.by(func(*target.Change) error { return blocked })
	if err := c.Remove(evs[:1]); !errors.Is(err, target.ErrBlocked) {
		t.Fatalf("removed: %v", err)
	}
	h.by(func(ch *target.Change) error { // what only adds is done if the rest may be left out
		if len(ch.Groups) < 2 {
			return blocked
		}
		ch.Begin()
		var free []*target.Group
		for _, g := range ch.Groups {
			if len(g.Remove) == 0 {
				free = append(free, g)
			} else {
				g.Blocked = blocked
			}
		}
		return h.Target.Commit(&target.Change{Groups: free})
	})
	var runs, others atomic.Uint64
	ks := []*kprobes.Kprobe{{SymbolName: "first", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { runs.Add(1); return 0 }}, {SymbolName: "second"}}
	if err := c.RegisterKprobes(ks); !errors.Is(err, target.ErrBlocked) {
		t.Fatalf("registered: %v", err)
	}
	if b := bytesAt(t, c, first); b[0] != byJump {
		t.Fatalf("% x stands at first: the test does not hinder what it is to hinder", b)
	}
	h.commit.Store(nil)
	k := &kprobes.Kprobe{SymbolName: "third", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { others.Add(1); return 0 }}
	must(t, c.RegisterKprobe(k))
	before := prog.Counts("count")
	after := prog.Counts("go 100")
	if want := after["third"] - before["third"]; others.Load() != want || k.State().Hits != want || want == 0 || after["first"] == before["first"] || runs.Load() != 0 {
		t.Errorf("third: %d runs, %+v, the program counted %d; first: %d runs of a probe that was not registered", others.Load(), k.State(), want, runs.Load())
	}
	c.UnregisterKprobe(k)
	eventually(t, "what was put in has gone", func() bool { return bytes.Equal(bytesAt(t, c, first), orig["first"]) })
	must(t, c.Remove(evs))
	must(t, c.Close(nil))
}

// TestKnobHalfTurned: not all can be disarmed, and what was taken out for it can not be put back
// at once. The knob stays as it was, and the probes are queued until they are in again.
func TestKnobHalfTurned(t *testing.T) {
	prog, h, c := hinder(t)
	evs := addEvents(t, c, &kprobes.AddOptions{Count: true}, "p:one first", "p:two second")
	blocked := &target.BusyError{TID: prog.PID, Why: "a test"}
	h.by(func(ch *target.Change) error { // one of the functions only
		if len(ch.Groups) < 2 {
			return blocked
		}
		ch.Begin()
		ch.Groups[1].Blocked = blocked
		return h.Target.Commit(&target.Change{Groups: ch.Groups[:1]})
	})
	if err := c.SetEnabled(false); !errors.Is(err, target.ErrBlocked) || !c.Enabled() {
		t.Fatalf("disarmed: %v, enabled: %t", err, c.Enabled())
	}
	o := c.Stats()
	h.commit.Store(nil)
	if o.Queued != 1 || o.Unarmed != 1 {
		t.Errorf("%+v, want one event that waits to be armed again", o)
	}
	eventually(t, "all is armed again", func() bool { return c.Stats().Queued == 0 })
	before := prog.Counts("count")
	was := []kprobes.Counts{c.Counts(evs[0]), c.Counts(evs[1])}
	after := prog.Counts("go 100")
	for i, fn := range []string{"first", "second"} {
		if got, want := c.Counts(evs[i]).Hits-was[i].Hits, after[fn]-before[fn]; got != want || want == 0 {
			t.Errorf("%s: %d hits, the program counted %d", fn, got, want)
		}
	}
	must(t, c.Close(nil))
}
