package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/toggle"
)

// Bounds of a wait, and of what is kept of what is wrong.
const (
	patience    = 100 * time.Second // less than who asks has
	maxProblems = 20
)

// probed is a Kprobe at a place.
type probed struct {
	at   place
	k    kprobes.Kprobe
	runs atomic.Uint64 // of its handler
	had  kprobes.State // when it was looked at last
}

// newProbe makes a probe with a handler, or one that only counts.
func newProbe(at place, handler bool) *probed {
	p := &probed{at: at, k: kprobes.Kprobe{SymbolName: at.fn, Offset: at.off}}
	if handler {
		p.k.PreHandler = func(*kprobes.Kprobe, *kprobes.Regs) int { p.runs.Add(1); return 0 }
	}
	return p
}

func kprobesOf(ps []*probed) (ks []*kprobes.Kprobe) {
	for _, p := range ps {
		ks = append(ks, &p.k)
	}
	return ks
}

// toggling is what is done from begin to end.
type toggling struct {
	*report
	c       *kprobes.Core
	text    []byte // what stands in the functions
	whole   []*probed
	returns []*kprobes.Kretprobe
	seen    []uint64 // what the returns had counted when they were looked at last
	singles []*probed
	parked  toggle.Calls // when the threads waited last
	before  toggle.Calls // at the beginning
	least   uint64       // bytes of generated code that are there without probes
	rounds  int
}

// begin makes the own process a target, arms what stays, and has the threads run.
func begin() (*toggling, error) {
	c, err := open()
	if err != nil {
		return nil, err
	}
	r := &toggling{report: &report{Places: len(all), Refused: refused}, c: c}
	r.before, _ = called()
	r.least = r.little()
	r.arm()
	run(true)
	return r, nil
}

// round does a round of changes.
func (r *toggling) round(again int) {
	r.cycle(r.rounds)
	r.single(r.rounds)
	r.all(r.rounds, again)
	r.rounds++
	r.Postponed = r.c.Stats().Postponed
}

// end takes everything out while the threads run, and has them wait.
func (r *toggling) end() {
	r.disarm()
	if err := shut(r.c); err != nil {
		r.wrong("%v", err)
	}
	run(false)
	now, _ := called()
	for fn := range now {
		r.Calls += now[fn] - r.before[fn]
	}
	if n := wrongResults(); n > 0 {
		r.wrong("%d results were wrong", n)
	}
	r.fill()
}

// little is the number of bytes of generated code that are there without probes, once what is made
// with the first of them is made.
func (r *toggling) little() uint64 {
	r.text, _ = memory(r.c)
	p := []*probed{newProbe(all[0], true)}
	r.register("the first", p)
	r.unregister("the first", p)
	return r.used()
}

// used is the number of bytes of generated code that are taken.
func (r *toggling) used() uint64 {
	return r.c.Target().Capabilities().CodeUsed()
}

// wrong notes a problem.
func (r *toggling) wrong(format string, args ...any) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// change makes a change, and makes it again for as long as a thread is in its way. It counts the
// patches that are others in memory then.
func (r *toggling) change(what string, f func() error) {
	err := f()
	for end := time.Now().Add(patience); errors.Is(err, target.ErrBlocked) && time.Now().Before(end); r.Again++ {
		err = f()
	}
	if err != nil {
		r.wrong("%s: %v", what, err)
	}
	now, err := memory(r.c)
	if err != nil {
		r.wrong("%s: %v", what, err)
	}
	r.Toggles += toggle.Patches(r.text, now)
	r.Changes++
	r.text = now
}

func (r *toggling) register(what string, ps []*probed) {
	r.change(what, func() error { return r.c.RegisterKprobes(kprobesOf(ps)) })
	r.Probes += len(ps)
}

func (r *toggling) unregister(what string, ps []*probed) {
	r.change(what, func() error { r.c.UnregisterKprobes(kprobesOf(ps)); return nil })
}

// settled waits until nothing of a change is queued: what a thread was in the way of. Where one
// always is, the threads wait for it.
func (r *toggling) settled() {
	ready := func() bool { return r.c.Stats().Queued == 0 }
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ready() {
			return
		}
	}
	run(false)
	for end := time.Now().Add(patience); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.wrong("while nothing runs the optimiser waits for %q", r.c.Stats().Why)
			return
		}
	}
	run(true)
}

// arm arms what stays, while the threads wait: a probe at the first place of each function, of
// every other one with a handler, and one on its returns; and registers those that
// are enabled and disabled one by one.
func (r *toggling) arm() {
	last := ""
	for i, at := range all {
		if at.fn != last {
			r.whole = append(r.whole, newProbe(at, len(r.whole)%2 == 1))
			r.returns = append(r.returns, &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: at.fn}, MaxActive: 4 * threads})
		}
		last = at.fn
		if i%11 == 5 {
			p := newProbe(at, i%2 == 1)
			p.k.Flags = kprobes.FlagDisabled
			r.singles = append(r.singles, p)
		}
	}
	r.register("what stays", r.whole)
	r.register("what is enabled", r.singles)
	r.change("returns", func() error { return r.c.RegisterKretprobes(r.returns) })
	r.settled()
	r.look(r.whole)
}

// disarm has the threads wait, compares what has stayed, and takes it out.
func (r *toggling) disarm() {
	r.park(r.whole)
	run(true)
	r.unregister("what has stayed", r.whole)
	r.unregister("what was enabled", r.singles)
	r.change("returns", func() error { r.c.UnregisterKretprobes(r.returns); return nil })
	r.change("the knob", func() error { return r.c.SetOptimization(true) })
	r.settled()
	for end := time.Now().Add(patience); r.used() != r.least && time.Now().Before(end); {
		p := []*probed{newProbe(all[0], false)} // detours that a thread was in are given back by later stops
		r.register("the last", p)
		r.unregister("the last", p)
		time.Sleep(time.Millisecond)
	}
	if now := r.used(); now != r.least {
		r.wrong("%d bytes of generated code are left, %d before the first probe", now, r.least)
	}
	if n := toggle.Patches(r.text, file()); n > 0 {
		r.wrong("%d patches are left", n)
	}
}
