package kprobes_test

import (
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes"
)

// TestKretprobeTrampoline has handlers at the entry and the returns of functions that end in
// jumps: one that the other jumps to, so that each call has both at one place of the stack.
func TestKretprobeTrampoline(t *testing.T) {
	prog, c := attach(t, "tails")
	space := c.Target().Space()
	var entries, returns, dropped, wrong atomic.Uint64
	probe := func(name string, add uint64) *kprobes.Kretprobe {
		return &kprobes.Kretprobe{
			Kp: kprobes.Kprobe{SymbolName: name}, DataSize: 8,
			EntryHandler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
				if entries.Add(1)%5 == 0 {
					dropped.Add(1)
					return 1
				}
				ri.Data[0], ri.Data[1] = byte(r.DI), byte(r.DI>>8)
				return 0
			},
			Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
				returns.Add(1)
				arg := uint64(ri.Data[0]) | uint64(ri.Data[1])<<8
				if l, ok := space.SymbolAt(ri.RetAddr); !ok || l.Name == "" {
					wrong.Add(1)
				}
				if r.ReturnValue() != 3*(arg+add) || ri.Tail {
					wrong.Add(1)
				}
				return 0
			},
		}
	}
	rs := []*kprobes.Kretprobe{probe("outer", 3), probe("inner", 2), probe("outer", 3)}
	if err := c.RegisterKretprobes(rs); err != nil {
		t.Fatal(err)
	}
	n := prog.Counts("go 64")
	for _, r := range rs {
		if s := r.State(); s.Returns != kprobes.ReturnsTrampoline || s.WhyReturns == nil || s.Strays != 0 || s.Misses.Total() != 0 || s.Unwound != 0 {
			t.Errorf("%+v", s)
		}
	}
	if entries.Load() != 3*64 || returns.Load()+dropped.Load() != entries.Load() || wrong.Load() != 0 || n["bad"] != 0 {
		t.Errorf("%d entries, %d returns, %d dropped, %d wrong; the program: %v", entries.Load(), returns.Load(), dropped.Load(), wrong.Load(), n)
	}
	for range 20 {
		if err := c.DisableKretprobe(rs[0]); err != nil {
			t.Fatal(err)
		}
		prog.Send("go 3")
		if err := c.EnableKretprobe(rs[0]); err != nil {
			t.Fatal(err)
		}
		prog.Line()
	}
	c.UnregisterKretprobes(rs[1:])
	prog.Send("go 10")
	c.UnregisterKretprobes(rs[:1])
	prog.Line()
	if n := prog.Counts("same"); n["bad"] != 0 {
		t.Errorf("the program: %v", n)
	}
}
