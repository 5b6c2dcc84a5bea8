package kprobes_test

import (
	"testing"

	"kprobes.dev/kprobes"
)

//go:noinline
func benchTarget(a, b int) int { return a*3 + b }

var benchSink int

func run(b *testing.B) {
	b.Helper()
	for i := 0; b.Loop(); i++ {
		benchSink = benchTarget(i, 1)
	}
}

func BenchmarkSelf(b *testing.B) {
	const name = "kprobes.dev/kprobes_test.benchTarget"
	b.Run("none", run)
	b.Run("kprobe", func(b *testing.B) {
		n := 0
		k := &kprobes.Kprobe{SymbolName: name, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { n++; return 0 }}
		if err := kprobes.RegisterKprobe(k); err != nil {
			b.Fatal(err)
		}
		defer kprobes.UnregisterKprobe(k)
		run(b)
		if n < b.N {
			b.Errorf("%d of %d", n, b.N)
		}
	})
	b.Run("kprobe post", func(b *testing.B) {
		k := &kprobes.Kprobe{SymbolName: name, PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}}
		if err := kprobes.RegisterKprobe(k); err != nil {
			b.Fatal(err)
		}
		defer kprobes.UnregisterKprobe(k)
		run(b)
	})
	b.Run("kretprobe", func(b *testing.B) {
		k := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: name}, Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 }}
		if err := kprobes.RegisterKretprobe(k); err != nil {
			b.Fatal(err)
		}
		defer kprobes.UnregisterKretprobe(k)
		run(b)
	})
	b.Run("jprobe", func(b *testing.B) {
		k := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: name}, Entry: func(a, b int) int { return 0 }}
		if err := kprobes.RegisterJprobe(k); err != nil {
			b.Fatal(err)
		}
		defer kprobes.UnregisterJprobe(k)
		run(b)
	})
	b.Run("sleepable", func(b *testing.B) {
		k := &kprobes.Kprobe{
			SymbolName: "kprobes.dev/kprobes_test.sleeper", Flags: kprobes.FlagSleepable,
			PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 },
		}
		if err := kprobes.RegisterKprobe(k); err != nil {
			b.Fatal(err)
		}
		defer kprobes.UnregisterKprobe(k)
		args := []string{"x"}
		for b.Loop() {
			sleeper(args, 0)
		}
	})
}
