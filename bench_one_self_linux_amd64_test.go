//go:build !race

package kprobes_test

import (
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/benchprobes"
	"kprobes.dev/kprobes/internal/workload"
)

// BenchmarkSelfOne registers and unregisters one probe while counters are armed at many functions of this program: at none, at
// those of this module, and at all.
func BenchmarkSelfOne(b *testing.B) {
	workload.LoopLeaf(1) // so that it is linked
	for _, pattern := range []string{"kprobes.dev/kprobes.Self", "kprobes.dev/kprobes*", "*"} {
		a, err := benchprobes.Self(pattern, func() error {
			for kind, round := range map[string]func(*kprobes.Core) error{"kprobe": oneKprobe, "jprobe": oneJprobe} {
				b.Run(pattern+"/"+kind, func(b *testing.B) {
					core, err := kprobes.Self()
					if err != nil {
						b.Fatal(err)
					}
					for b.Loop() {
						if err := round(core); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Logf("%s: %d armed", pattern, a.Armed)
	}
}

func oneKprobe(c *kprobes.Core) error {
	k := &kprobes.Kprobe{SymbolName: workload.OwnLeaf, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	err := c.RegisterKprobe(k)
	c.UnregisterKprobe(k)
	return err
}

func oneJprobe(c *kprobes.Core) error {
	j := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: workload.OwnLeaf}, Entry: func(_, _ int) int { return 0 }}
	err := c.RegisterJprobe(j)
	c.UnregisterJprobe(j)
	return err
}
