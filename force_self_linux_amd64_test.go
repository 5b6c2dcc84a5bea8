//go:build !race

package kprobes_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/workload"
)

// A forced tactic is taken by every kind of probe with a handler, and each counts every call;
// then the best one is taken again.
func TestForceTactic(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Of(core).ForceTactic(arch.TacticUprobe); !errors.Is(err, unix.EINVAL) {
		t.Errorf("uprobe: %v, want EINVAL", err)
	}
	for _, tactic := range []arch.Tactic{arch.TacticStep, arch.TacticBoost, arch.TacticJump, ""} {
		if err := engine.Of(core).ForceTactic(tactic); err != nil {
			t.Fatal(err)
		}
		k := &kprobes.Kprobe{SymbolName: workload.OwnLeaf, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
		r := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: workload.OwnLeaf}, Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 }}
		j := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: workload.OwnDeep}, Entry: func(_, _ int) int { return 0 }}
		if err := errors.Join(kprobes.RegisterKprobe(k), kprobes.RegisterKretprobe(r), kprobes.RegisterJprobe(j)); err != nil {
			t.Fatal(err)
		}
		const calls = 20
		workload.LoopLeaf(calls)
		workload.LoopDeep(calls)
		want := tactic
		if want == "" {
			want = arch.TacticJump
		}
		for name, s := range map[string]kprobes.State{"kprobe": k.State(), "kretprobe": r.State(), "jprobe": j.State()} {
			if s.Tactic != want || s.Hits != calls {
				t.Errorf("%s forced to %q: by %s, %d hits, want %s and %d", name, tactic, s.Tactic, s.Hits, want, calls)
			}
		}
		kprobes.UnregisterKprobe(k)
		kprobes.UnregisterKretprobe(r)
		kprobes.UnregisterJprobe(j)
	}
}
