package modules_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"kprobes.dev/kprobes/modules"
)

// What the example probes. A function that the compiler may inline has no code of its own.
//
//go:noinline
func greet(name string) int {
	greeted++
	return len(name)
}

var greeted int

// A module of C counts the calls of a function of this program, and looks at an argument: of a string, its length is the second word.
func Example() {
	object, err := modules.Compile("greetings", []byte(`
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static int longest;
module_param(longest, int, 0);

static int before(struct kprobe *p, struct pt_regs *regs)
{
	if (regs->bx > longest)
		pr_info("a name of %lu bytes\n", regs->bx);
	return 0;
}

static struct kprobe kp = { .symbol_name = "kprobes.dev/kprobes/modules_test.greet", .pre_handler = before };

static int __init start(void) { return register_kprobe(&kp); }
static void __exit end(void) { unregister_kprobe(&kp); }

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
`))
	if err != nil {
		log.Fatal(err)
	}
	table, err := modules.Of(nil)
	if err != nil {
		log.Fatal(err)
	}
	m, err := table.Insert("greetings", bytes.NewReader(object), "longest=5")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"Ada", "Katherine", "Grace", "Dorothy"} {
		greet(name)
	}
	if err := m.Remove(); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // what has been written until now
	for line := range table.Lines(ctx) {
		fmt.Println(line.Text)
	}
	// Output:
	// a name of 9 bytes
	// a name of 7 bytes
}
