package modules_test

import (
	"bytes"
	"testing"

	"kprobes.dev/kprobes"
)

// plain is probed.
//
//go:noinline
func plain(n int) int { return n + 1 }

// countsPlain counts the calls of plain.
const countsPlain = `
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>
static DEFINE_PER_CPU(unsigned long, calls);
static int before(struct kprobe *p, struct pt_regs *regs) { this_cpu_inc(calls); return 0; }
static struct kprobe kp = {.symbol_name = "kprobes.dev/kprobes/modules_test.plain", .pre_handler = before};
static int __init start(void) { return register_kprobe(&kp); }
static void __exit end(void) { unregister_kprobe(&kp); }
module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
`

// BenchmarkHandler calls a function that is not probed, that has a handler in a module, and that has one in Go.
func BenchmarkHandler(b *testing.B) {
	calls := func(b *testing.B) {
		n := 0
		for b.Loop() {
			n = plain(n)
		}
	}
	b.Run("none", calls)
	b.Run("module", func(b *testing.B) {
		table := own(b)
		m, err := table.Insert("plain", bytes.NewReader(source(b, "plain", countsPlain)))
		if err != nil {
			b.Fatal(err)
		}
		calls(b)
		remove(b, table, m)
	})
	b.Run("go", func(b *testing.B) {
		var hits int
		k := &kprobes.Kprobe{
			SymbolName: "kprobes.dev/kprobes/modules_test.plain",
			PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { hits++; return 0 },
		}
		if err := kprobes.RegisterKprobe(k); err != nil {
			b.Skip(err) // with -race
		}
		calls(b)
		kprobes.UnregisterKprobe(k)
	})
}
