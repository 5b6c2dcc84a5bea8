// Counts the calls of a Go function, and holds its arguments against its result.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>

#define PKG "kprobes.dev/kprobes/modules_test."

static DEFINE_PER_CPU(unsigned long, calls);
static unsigned long behind, returned, wrong;
static int spin;
module_param(spin, int, 0);

static void count(unsigned long *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

static int before(struct kprobe *p, struct pt_regs *regs)
{
	volatile int i;

	this_cpu_inc(calls);
	for (i = 0; i < spin; i++)
		;
	if (regs->bx != regs->ax + 1)
		count(&wrong);
	return 0;
}

static void after(struct kprobe *p, struct pt_regs *regs, unsigned long flags) { count(&behind); }

struct call {
	unsigned long sum;
};

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *c = (struct call *)ri->data;

	c->sum = regs->ax + regs->bx;
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

static struct kprobe kp = {.symbol_name = PKG "Sum", .pre_handler = before};
static struct kprobe after_kp = {.symbol_name = PKG "Deep", .post_handler = after};
static struct kretprobe rp = {.kp.symbol_name = PKG "Sum", .entry_handler = entry, .handler = back, .data_size = sizeof(struct call)};

static int __init start(void)
{
	int err = register_kprobe(&kp);

	if (err)
		return err;
	err = register_kprobe(&after_kp);
	if (err)
		goto first;
	err = register_kretprobe(&rp);
	if (!err)
		return 0;
	unregister_kprobe(&after_kp);
first:
	unregister_kprobe(&kp);
	return err;
}

static void __exit end(void)
{
	unsigned long n = 0;
	int cpu;

	unregister_kretprobe(&rp);
	unregister_kprobe(&after_kp);
	unregister_kprobe(&kp);
	for_each_possible_cpu(cpu)
		n += per_cpu(calls, cpu);
	pr_info("calls=%lu behind=%lu returned=%lu wrong=%lu missed=%lu\n", n, behind, returned, wrong, kp.nmissed + after_kp.nmissed + rp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
