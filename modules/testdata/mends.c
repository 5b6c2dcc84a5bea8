// Its handler faults at every tenth hit, and its fault handler has it go on behind the instruction.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static unsigned long calls, faults, mended;

static int before(struct kprobe *p, struct pt_regs *regs)
{
	if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 10 == 0) {
		asm volatile("ud2" ::: "memory");
		__atomic_fetch_add(&mended, 1, __ATOMIC_RELAXED);
	}
	return 0;
}

static int fault(struct kprobe *p, struct pt_regs *regs, int trapnr)
{
	if (trapnr != 6)
		return 0;
	__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);
	regs->ip += 2;
	return 1;
}

static struct kprobe kp = {.symbol_name = "kprobes.dev/kprobes/modules_test.Sum", .pre_handler = before, .fault_handler = fault};

static int __init start(void) { return register_kprobe(&kp); }

static void __exit end(void)
{
	unregister_kprobe(&kp);
	pr_info("calls=%lu faults=%lu mended=%lu\n", calls, faults, mended);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
