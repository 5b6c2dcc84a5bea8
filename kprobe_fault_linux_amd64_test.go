package kprobes_test

import (
	"fmt"
	"slices"
	"testing"

	"kprobes.dev/kprobes"
)

// Trap numbers of the CPU.
const (
	trapDivide    = 0
	trapUndefined = 6
	trapPage      = 14
)

// TestFaultHandlerProcess: a fault of the probed instruction itself is told to the probe's fault
// handler with the trap number. What that does not take the program's own handler sees, at the
// instruction's own address and with its registers.
func TestFaultHandlerProcess(t *testing.T) {
	prog, c := attach(t, "segv")
	for _, optimise := range []bool{true, false} {
		t.Run(fmt.Sprintf("optimised=%t", optimise), func(t *testing.T) {
			if err := c.SetOptimization(optimise); err != nil {
				t.Fatal(err)
			}
			testFaultHandler(t, c, prog.Counts)
		})
	}
}

func testFaultHandler(t *testing.T, c *kprobes.Core, ask func(string) map[string]uint64) {
	var traps [5][]int
	var at [5]uint64
	fault := func(i, answer int, repair func(*kprobes.Regs)) func(*kprobes.Kprobe, *kprobes.Regs, int) int {
		return func(_ *kprobes.Kprobe, r *kprobes.Regs, trap int) int {
			traps[i], at[i] = append(traps[i], trap), r.IP
			repair(r)
			return answer
		}
	}
	leave := func(r *kprobes.Regs) {
		if err := r.Return(); err != nil {
			t.Error(err)
		}
	}
	ks := []*kprobes.Kprobe{
		{SymbolName: "touch", FaultHandler: fault(0, 0, func(r *kprobes.Regs) { r.DI = 1 })},
		{SymbolName: "divide", FaultHandler: fault(1, 1, func(r *kprobes.Regs) { r.AX, r.DX, r.SI = 0, 0, 1 })},
		{
			SymbolName: "odd", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 },
			FaultHandler: fault(2, 1, func(r *kprobes.Regs) {
				leave(r)
				r.AX = 9
			}),
		},
		// The next instruction is in the bytes of the jump, if there is one: the thread goes on in the detour.
		{SymbolName: "past", FaultHandler: fault(3, 1, func(r *kprobes.Regs) { r.IP, r.AX = r.IP+3, 0 })},
		// A call through memory: left to the program, repaired, and not done, by turns.
		{SymbolName: "dispatch", FaultHandler: func(p *kprobes.Kprobe, r *kprobes.Regs, trap int) int {
			if r.SP != r.SI {
				t.Errorf("dispatch: stack pointer 0x%x, want 0x%x", r.SP, r.SI)
			}
			turn := len(traps[4]) % 3
			return fault(4, min(turn, 1), func(r *kprobes.Regs) {
				switch turn {
				case 1:
					r.DI = r.DX
				case 2:
					leave(r)
					r.AX = 42
				}
			})(p, r, trap)
		}},
	}
	before := ask("count")
	if err := c.RegisterKprobes(ks); err != nil {
		t.Fatal(err)
	}
	const n = 21
	counts := ask(fmt.Sprint("go ", n))
	c.UnregisterKprobes(ks)
	for what, want := range map[string]uint64{"bad": 0, "touch": n, "divide": 0, "odd": 0, "past": 0, "dispatch": n / 3} {
		if got := counts[what] - before[what]; got != want {
			t.Errorf("the program: %s: %d, want %d", what, got, want)
		}
	}
	for i, want := range []int{trapPage, trapDivide, trapUndefined, trapPage, trapPage} {
		k := ks[i]
		if !slices.Equal(traps[i], slices.Repeat([]int{want}, n)) || at[i] != k.Addr {
			t.Errorf("%s: traps %d at 0x%x, want %d times %d at 0x%x", k.SymbolName, traps[i], at[i], n, want, k.Addr)
		}
		if s := k.State(); s.Hits != n || s.Misses.Total() != 0 || k.Fault() != nil {
			t.Errorf("%s: %+v, %v", k.SymbolName, s, k.Fault())
		}
	}
	if after := ask("go 5"); after["bad"] != before["bad"] || after["divide"] != counts["divide"]+5 || after["dispatch"] != counts["dispatch"]+5 {
		t.Errorf("the program, unprobed: %v", after)
	}
}
