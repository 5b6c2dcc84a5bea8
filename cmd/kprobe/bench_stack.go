package main

import (
	"errors"
	"fmt"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/workload"
)

// Stacks that are measured.
const (
	stackCallers = 32
	stackBytes   = 8 * (stackCallers + 6) // of a record, at least
	barStack     = 1000.0                 // ns
)

// stacks measures what a record with a stack costs.
func (b *bench) stacks() error {
	f := figure{What: fmt.Sprintf("a hit that records %d callers", stackCallers), Where: whereProcess, Unit: "ns", Bar: barStack, AtMost: true}
	ns, err := b.stackTime()
	if err != nil {
		f.Failed = escapedError(err)
	} else {
		f.set(ns)
		f.Of = "beyond the unprobed call"
	}
	return b.add(f)
}

func (b *bench) stackTime() (ns float64, err error) {
	at, err := b.place(workload.Bottom)
	if err != nil {
		return 0, err
	}
	d, err := event.Parse(fmt.Sprintf("p:bench/stack 0x%x", at.Vaddr))
	if err != nil {
		return 0, err
	}
	d.Stack = stackCallers
	core := b.s.core
	evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Tactic: arch.TacticJump})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, core.Remove(evs)) }()
	calls := min(b.calls, b.locked*perCall/stackBytes) / batches * batches
	var diff []float64
	want, full := uint64(0), uint64(0)
	for i := 0; i <= b.rounds && b.ctx.Err() == nil; i++ {
		plain, err1 := b.plain.Run(workload.Stacked, calls, 1)
		probed, err2 := b.probed.Run(workload.Stacked, calls, 1)
		if err := errors.Join(err1, err2); err != nil {
			return 0, err
		}
		want += probed.Calls
		for end := time.Now().Add(drainTime); core.Counts(evs[0]).Read < want && time.Now().Before(end); time.Sleep(time.Millisecond / 2) {
			core.Poll(func(h *hit.Hit) {
				if fs, _, err := h.Callers(nil); err == nil && len(fs) == stackCallers {
					full++
				}
			})
		}
		if i > 0 {
			diff = append(diff, probed.Median-plain.Median)
		}
	}
	switch n := core.Counts(evs[0]); {
	case b.ctx.Err() != nil:
		return 0, errInterrupted
	case n.Lost != 0:
		return 0, fmt.Errorf("%d of %d: %w", n.Lost, n.Hits, errRing)
	case n.Hits != want || full != want:
		return 0, fmt.Errorf("%d, %d of them with all callers, not %d: %w", n.Hits, full, want, errCount)
	}
	return median(diff), nil
}
