package kprobes_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
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

// TestKretprobeReaderComes: an object comes that reads return addresses, where nobody calls Sync:
// return addresses are put back, and the State says why the probe does nothing any more.
func TestKretprobeReaderComes(t *testing.T) {
	prog, c := attachTo(t, testprog.Build(t, "callers", "-Wl,--no-as-needed", "-lgcc_s"))
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "deep"}}
	must(t, c.RegisterKretprobe(rp))
	prog.Counts("hold 7")
	if n := prog.Counts("walk"); n["strange"] != 7 {
		t.Errorf("no return address is replaced: %v", n)
	}
	prog.Counts("open " + testprog.Build(t, "libframes"))
	eventually(t, "the reason", func() bool {
		s := rp.State()
		return s.Why != nil && strings.Contains(s.Why.Error(), "OCaml's frame tables")
	})
	if n := prog.Counts("walk"); n["frames"] != 7 || n["strange"] != 0 {
		t.Errorf("return addresses were not put back: %v", n)
	}
	prog.Counts("release")
	if s := rp.State(); s.Active != 7 || s.Hits+s.Unwound != 0 || s.Tactic != "" {
		t.Errorf("%+v", s)
	}
	must(t, c.DisableKretprobe(rp))
	if err := c.EnableKretprobe(rp); err == nil || !strings.Contains(err.Error(), "OCaml's frame tables") {
		t.Errorf("enabled again: %v", err)
	}
	c.UnregisterKretprobe(rp)
	prog.Counts("go 10")
}
