package kprobes_test

import (
	"encoding/binary"
	"fmt"
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

// tailBacks counts what the handlers of return probes on back, of the program tailback, have seen.
type tailBacks struct{ entries, dropped, returns, wrong atomic.Uint64 }

// probe makes a probe that drops every n-th of the entries; 0: none. Its handlers must run for the newest call
// first, and have what that call's own entry has kept.
func (b *tailBacks) probe(c *kprobes.Core, n uint64) *kprobes.Kretprobe {
	var more atomic.Uint64 // what is to come at least
	return &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: "back"}, DataSize: 16,
		EntryHandler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
			more.Store(0)
			if at := b.entries.Add(1); n > 0 && at%n == 0 {
				b.dropped.Add(1)
				return 1
			}
			binary.LittleEndian.PutUint64(ri.Data, r.DI)
			binary.LittleEndian.PutUint64(ri.Data[8:], r.SI)
			return 0
		},
		Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
			b.returns.Add(1)
			left, sum := binary.LittleEndian.Uint64(ri.Data), binary.LittleEndian.Uint64(ri.Data[8:])
			if r.ReturnValue() != 3*(sum+2*left) || more.Swap(left+1) > left {
				b.wrong.Add(1)
			}
			if l, ok := c.Target().Space().SymbolAt(ri.RetAddr); !ok || l.Name != "check" && l.Name != "main" {
				b.wrong.Add(1)
			}
			return 0
		},
	}
}

// TestKretprobeTailBack has handlers at the entries and the returns of a function that comes back to its entry by a
// jump. Some entries are dropped, in the middle of a call.
func TestKretprobeTailBack(t *testing.T) {
	prog, c := attachTo(t, testprog.Build(t, "tailback"))
	var b tailBacks
	rs := []*kprobes.Kretprobe{b.probe(c, 0), b.probe(c, 3), b.probe(c, 4)}
	must(t, c.RegisterKretprobes(rs))
	for depth := range 6 {
		prog.Counts(fmt.Sprintf("deep %d", depth+1))
	}
	n := prog.Counts("deep 30")
	for _, r := range rs {
		if s := r.State(); s.Returns != kprobes.ReturnsTrampoline || s.Strays != 0 || s.Misses.Total() != 0 || s.Unwound+s.Active != 0 {
			t.Errorf("%+v", s)
		}
	}
	entries, dropped, returns := b.entries.Load(), b.dropped.Load(), b.returns.Load()
	if entries != 3*n["back"] || returns+dropped != entries || dropped == 0 || b.wrong.Load()+n["bad"] != 0 {
		t.Errorf("%d entries, %d returns, %d dropped, %d wrong; the program: %v", entries, returns, dropped, b.wrong.Load(), n)
	}
	prog.Counts("hold 3")
	must(t, c.DisableKretprobe(rs[0]))
	must(t, c.EnableKretprobe(rs[0]))
	c.UnregisterKretprobe(rs[1])
	if n := prog.Counts("release"); n["bad"] != 0 {
		t.Errorf("the program: %v", n)
	}
	if got := b.returns.Load() - returns; got == 0 || got > 6 { // of the third probe alone, which has dropped some
		t.Errorf("%d returns of calls that were in progress", got)
	}
	c.UnregisterKretprobes([]*kprobes.Kretprobe{rs[0], rs[2]})
	if n := prog.Counts("go 10"); n["bad"] != 0 {
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
