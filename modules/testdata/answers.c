// Answers in the place of a Go function, for odd arguments.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static int before(struct kprobe *p, struct pt_regs *regs)
{
	if (regs->ax % 2 == 0)
		return 0;
	regs->ax = 42;
	regs->ip = *(unsigned long *)regs->sp;
	regs->sp += 8;
	return 1;
}

static struct kprobe kp = {.symbol_name = "kprobes.dev/kprobes/modules_test.Sum", .pre_handler = before};

static int __init start(void) { return register_kprobe(&kp); }

static void __exit end(void) { unregister_kprobe(&kp); }

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
