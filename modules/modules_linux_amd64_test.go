package modules_test

import (
	"bytes"
	"context"
	"testing"

	"kprobes.dev/kprobes/modules"
)

// Sum is probed.
//
//go:noinline
func Sum(a, b int) int { return a + b }

// done is a context that is done.
var done = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func compiled(tb testing.TB, name, source string) *bytes.Reader {
	tb.Helper()
	object, err := modules.Compile(name, []byte(source))
	if err != nil {
		tb.Fatal(err)
	}
	return bytes.NewReader(object)
}

func TestSmoke(t *testing.T) {
	table, err := modules.Of(nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := table.Insert("smoke", compiled(t, "smoke", `
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
static unsigned long calls;
static int before(struct kprobe *p, struct pt_regs *regs)
{
	calls++;
	if (calls == 1)
		pr_info("%pS: %lu %lu\n", p->addr, regs->ax, regs->bx);
	return 0;
}
static struct kprobe kp = {.symbol_name = "kprobes.dev/kprobes/modules_test.Sum", .pre_handler = before};
static int __init start(void) { pr_info("start\n"); return register_kprobe(&kp); }
static void __exit end(void) { unregister_kprobe(&kp); pr_info("calls=%lu\n", calls); }
module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if Sum(i, 3) != i+3 {
			t.Fatal("wrong")
		}
	}
	if err := m.Remove(); err != nil {
		t.Fatal(err)
	}
	for l := range table.Lines(done) {
		t.Log(l)
	}
}
