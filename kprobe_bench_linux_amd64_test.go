//go:build !race

// Handlers in the own process run on the system stack, where the race detector can not.

package kprobes_test

import (
	"testing"

	"kprobes.dev/kprobes"
)

// BenchmarkOwn tells what a call of a function costs with probes of each kind on it.
func BenchmarkOwn(b *testing.B) {
	at := kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain"}
	pre := func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }
	back := func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 }
	for _, c := range []struct {
		name  string
		probe any
	}{
		{"none", nil},
		{"counter", &kprobes.Kprobe{SymbolName: at.SymbolName}},
		{"pre", &kprobes.Kprobe{SymbolName: at.SymbolName, PreHandler: pre}},
		{"return", &kprobes.Kretprobe{Kp: at, Handler: back}},
		{"entry-return-data", &kprobes.Kretprobe{Kp: at, EntryHandler: back, Handler: back, DataSize: 8}},
		{"jprobe", &kprobes.Jprobe{Kp: at, Entry: func(a, b uint64) uint64 { return 0 }}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var err error
			switch p := c.probe.(type) {
			case *kprobes.Kprobe:
				err = kprobes.RegisterKprobe(p)
				defer kprobes.UnregisterKprobe(p)
				p.Addr = 0
			case *kprobes.Kretprobe:
				err = kprobes.RegisterKretprobe(p)
				defer kprobes.UnregisterKretprobe(p)
				p.Kp.Addr = 0
			case *kprobes.Jprobe:
				err = kprobes.RegisterJprobe(p)
				defer kprobes.UnregisterJprobe(p)
				p.Kp.Addr = 0
			}
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				plainFn(1, 2)
			}
		})
	}
}
