package kprobes_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// MaxEvents bounds what exists at a time: events of definitions and probes with handlers.
func TestMaxEvents(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "conform"))
	proc, err := process.OpenUnwaited(prog.PID)
	must(t, err)
	t.Cleanup(func() { proc.Close() })
	tg, err := process.Attach(proc, nil)
	must(t, err)
	if _, err := kprobes.Open(tg, &kprobes.Options{MaxEvents: -1}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a negative limit: %v", err)
	}
	c, err := kprobes.Open(tg, &kprobes.Options{MaxEvents: 2})
	must(t, err)
	add := func(texts ...string) ([]*kprobes.Event, error) {
		var defs []*event.Def
		for _, text := range texts {
			d, err := event.Parse(text)
			must(t, err)
			defs = append(defs, d)
		}
		return c.Add(defs, &kprobes.AddOptions{Count: true})
	}
	if _, err := add("p:a target", "p:b target2", "r:c target"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("three events where two are allowed: %v", err)
	}
	if evs := c.Events(); len(evs) > 0 {
		t.Errorf("%d events of an addition that was refused", len(evs))
	}
	one, err := add("p:a target")
	must(t, err)
	var n atomic.Int64
	k := &kprobes.Kprobe{SymbolName: "target2", PreHandler: counting(&n)}
	must(t, c.RegisterKprobe(k))
	if _, err := add("p:b target2"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more: %v", err)
	}
	more := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "target"}}
	if err := c.RegisterKretprobe(more); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more probe: %v", err)
	}
	for range 5 { // over the life of the Core there may be any number
		must(t, c.Remove(one))
		one, err = add("p:b target2")
		must(t, err)
	}
	value(prog, "target2", 4)
	if got := c.Counts(one[0]).Hits; got != 1 || n.Load() != 1 {
		t.Errorf("one call: the event counts %d, the probe %d", got, n.Load())
	}
	must(t, c.Close(nil))
}
