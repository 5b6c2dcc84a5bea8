//go:build !race

package kprobes_test

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes"
)

//go:noinline
func selfLived(a, b uint64) uint64 { return a*7 + b }

var livedFn = selfLived

//go:noinline
func selfStood(a, b uint64) uint64 { return a*11 + b }

var stoodFn = selfStood

// TestTransitionsSelf: a probe of the own process.
func TestTransitionsSelf(t *testing.T) {
	call := func() {
		for i := range uint64(livedCalls) {
			if v := livedFn(i, 3); v != i*7+3 {
				t.Errorf("selfLived(%d, 3) = %d", i, v)
			}
		}
	}
	(&lived{c: ownCore(t), fn: selfPrefix + "selfLived", short: selfPrefix + "selfLived", call: call}).transitions(t)
}

// TestQueueSelf: the knob is turned on while a handler runs that a breakpoint's detour has
// called and will go back into bytes that the jump would take. Other probes become jumps at
// once, this one is queued, and goes on to count by its breakpoint until the handler has ended.
func TestQueueSelf(t *testing.T) {
	c := ownCore(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would wait for the handler
	fn, other := selfPrefix+"selfStood", selfPrefix+"selfLived"
	orig := originals(t, c, fn)[fn]
	var in, leave atomic.Bool
	var runs atomic.Int64
	k := &kprobes.Kprobe{SymbolName: fn, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		if runs.Add(1) == 1 {
			in.Store(true)
			for !leave.Load() {
			}
		}
		return 0
	}}
	o := &kprobes.Kprobe{SymbolName: other}
	must(t, c.SetOptimization(false))
	must(t, c.RegisterKprobes([]*kprobes.Kprobe{k, o}))
	stands(t, c, "the knob is off", k.Addr, byTrap, orig)
	done := make(chan uint64)
	go func() { done <- stoodFn(5, 6) }()
	for !in.Load() {
		runtime.Gosched()
	}
	err := c.SetOptimization(true)
	stands(t, c, "a handler runs", k.Addr, byTrap, orig)
	if l := lineOf(t, c, fn); !strings.HasPrefix(l, "boost: queued: thread ") {
		t.Errorf("it is listed as %q", l)
	}
	if b := bytesAt(t, c, o.Addr); b[0] != byJump || !o.State().Optimized {
		t.Errorf("the other probe: % x, %+v", b, o.State())
	}
	before := c.Stats()
	for i := range uint64(10) {
		if v := stoodFn(i, 1); v != i*11+1 {
			t.Errorf("selfStood(%d, 1) = %d", i, v)
		}
	}
	s := k.State()
	leave.Store(true)
	if v := <-done; v != 61 || err != nil {
		t.Errorf("the call that was held: %d; %v", v, err)
	}
	if s.Tactic != "boost" || s.Hits != 11 || before.Queued != 1 || before.Unarmed != 0 {
		t.Errorf("while it was queued: %+v, %+v", s, before)
	}
	optimised(t, c)
	if b := bytesAt(t, c, k.Addr); b[0] != byJump || !k.State().Optimized {
		t.Errorf("the handler has ended: % x, %+v", b, k.State())
	}
	stoodFn(1, 2)
	if n := k.State().Hits; n != 12 || runs.Load() != 12 {
		t.Errorf("%d hits, %d runs, want 12", n, runs.Load())
	}
	c.UnregisterKprobes([]*kprobes.Kprobe{k, o})
	if b := bytesAt(t, c, addrOf(t, c, fn)); !bytes.Equal(b, orig) {
		t.Errorf("% x is left, want % x", b, orig)
	}
}
