package self_test

import (
	"fmt"
	"sync"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/self/testdata/pushes"
)

func init() { children["pushes"] = pushed }

// TestPushes: assembly that moves the stack pointer before it checks its stack. Its entry is the
// function's start: a return is seen, the handler can leave the function, and the callers are right.
func TestPushes(t *testing.T) { child(t, "pushes") }

// grown calls Room on a stack that is small and has to grow for it.
//
//go:noinline
func grown(n int) (r int) {
	var wg sync.WaitGroup
	wg.Go(func() {
		pushes.Room(uintptr(n))
		r = pushes.Twice(n)
	})
	wg.Wait()
	return r
}

func pushed(c *kprobes.Core) error {
	const pkg = "kprobes.dev/kprobes/target/self/testdata/pushes."
	es, err := addCounts(c, "p:in "+pkg+"Room", "r:out "+pkg+"Room", "p:tin "+pkg+"Twice", "r:tout "+pkg+"Twice")
	if err != nil {
		return err
	}
	var callers [8]uint64
	var first, entries, returns uint64
	k := &kprobes.Kprobe{SymbolName: pkg + "Twice", PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
		if pcs := r.Stack(callers[:]); len(pcs) > 1 {
			first = pcs[0]
		}
		return 0
	}}
	ret := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: pkg + "Room"}, DataSize: 8,
		EntryHandler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			entries++
			ri.Data[0] = byte(entries)
			return 0
		},
		Handler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			if ri.Data[0] == byte(entries) {
				returns++
			}
			return 0
		},
	}
	if err := c.RegisterKprobe(k); err != nil {
		return err
	}
	if err := c.RegisterKretprobe(ret); err != nil {
		return err
	}
	const calls = 100
	for i := range calls {
		if n := 1000 * (i + 1); grown(n) != 2*n {
			return fmt.Errorf("Twice(%d) is wrong", n)
		}
	}
	for i, want := range []uint64{calls, calls, calls, calls} {
		if n := c.Counts(es[i]); n.Hits != want || n.Unwound+n.Active+n.Missed != 0 {
			return fmt.Errorf("%s: %+v, want %d hits", es[i].Name, n, want)
		}
	}
	if s := ret.State(); returns != calls || entries != calls || s.Hits != calls || s.Unwound != 0 {
		return fmt.Errorf("%d entries, %d returns with their data, %+v", entries, returns, s)
	}
	if name, _ := c.Symbol(first); name.Name != own+"grown.func1" && name.Name != own+"grown.func1.1" {
		return fmt.Errorf("Twice is called by %q (0x%x)", name.Name, first)
	}
	c.UnregisterKprobe(k)
	left := &kprobes.Kprobe{SymbolName: pkg + "Room", PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
		if r.Return() != nil {
			return 0
		}
		return 1
	}, PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}}
	before := c.Counts(es[1]).Hits
	if err := c.RegisterKprobe(left); err != nil {
		return err
	}
	for range calls {
		if grown(3) != 6 {
			return fmt.Errorf("Twice(3) is wrong when Room is left by the handler")
		}
	}
	if n := c.Counts(es[1]).Hits; n != before {
		return fmt.Errorf("%d returns of calls that the handler left", n-before)
	}
	return nil
}
