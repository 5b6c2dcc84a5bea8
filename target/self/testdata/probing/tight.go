package main

import (
	"strings"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
)

// narrow ends in a return that the code which grows its stack follows at once: no room for a jump.
//
//go:noinline
func narrow() int { return seven() }

//go:noinline
func seven() int { return 7 }

// tight has a breakpoint where no jump fits: unasked in a program without C code alone, in any
// while the knob asks for breakpoints.
func tight(core *kprobes.Core) {
	calls := func(what string, tactic arch.Tactic, r *kprobes.Kretprobe) {
		for range 100 {
			check("narrow", narrow(), 7)
		}
		if s := r.State(); s.Hits != 100 || s.Misses.Total() != 0 || s.Tactic != tactic {
			check(what, s, "100 hits by "+string(tactic))
		}
		kprobes.UnregisterKretprobe(r)
	}
	probe := func() *kprobes.Kretprobe {
		return &kprobes.Kretprobe{
			Kp: kprobes.Kprobe{SymbolName: "main.narrow"}, Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 },
		}
	}
	r := probe()
	err := kprobes.RegisterKretprobe(r)
	switch {
	case err == nil && r.State().Tactic == arch.TacticJump: // the compiler has left room
		kprobes.UnregisterKretprobe(r)
		return
	case !hasC:
		must(err)
		calls("unasked", arch.TacticBoost, r)
	case err == nil || !strings.Contains(err.Error(), "has C code"):
		check("a breakpoint in a program with C code", err, "a refusal")
	}
	must(core.SetOptimization(false))
	r = probe()
	must(kprobes.RegisterKretprobe(r))
	if err := core.SetOptimization(true); hasC != (err != nil) {
		check("the knob is on and nobody asks for the breakpoint any more", err, "a refusal where the program has C code")
	}
	calls("asked for", arch.TacticBoost, r)
	must(core.SetOptimization(true))
}
