// Looks at the arguments and results of main.Ints of the program gowork, which are in registers as Go has them.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static unsigned long calls, returned, wrong;

static void count(unsigned long *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

static int before(struct kprobe *p, struct pt_regs *regs)
{
	count(&calls);
	if (regs->bx != regs->ax + 1)
		count(&wrong);
	return 0;
}

struct call {
	unsigned long sum;
};

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *c = (struct call *)ri->data;
	c->sum = regs->ax + regs->bx + (int)regs->cx;
	return 0;
}

static int back(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *c = (struct call *)ri->data;
	count(&returned);
	if (regs->ax != c->sum)
		count(&wrong);
	return 0;
}

static struct kprobe kp = {.symbol_name = "main.Ints", .pre_handler = before};
static struct kretprobe rp = {.kp.symbol_name = "main.Ints", .entry_handler = entry, .handler = back, .data_size = sizeof(struct call)};

static int __init start(void)
{
	int err = register_kprobe(&kp);
	if (!err)
		err = register_kretprobe(&rp);
	return err;
}

static void __exit end(void)
{
	unregister_kretprobe(&rp);
	unregister_kprobe(&kp);
	pr_info("calls=%lu returned=%lu wrong=%lu missed=%lu\n", calls, returned, wrong, kp.nmissed + rp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
