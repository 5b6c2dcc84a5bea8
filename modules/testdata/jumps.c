// Looks at the arguments of a C function, also at those on the stack, and at its results.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static unsigned long calls, returned, wrong;

static void count(unsigned long *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

static long entry(long a, long b, long c, long d, long e, long f, long g, long h)
{
	count(&calls);
	if (b != a + 1 || c != a + 2 || d != a + 3 || e != a + 4 || f != a + 5 || g != a + 6 || h != a + 7)
		count(&wrong);
	jprobe_return();
	return 0;
}

static int back(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	count(&returned);
	if (regs->ax % 8 != 4)
		count(&wrong);
	return 0;
}

static struct jprobe jp = {.kp.symbol_name = "work", .entry = JPROBE_ENTRY(entry)};
static struct kretprobe rp = {.kp.symbol_name = "work", .handler = back};

static int __init start(void)
{
	int err = register_jprobe(&jp);
	if (!err)
		err = register_kretprobe(&rp);
	return err;
}

static void __exit end(void)
{
	unregister_kretprobe(&rp);
	unregister_jprobe(&jp);
	pr_info("calls=%lu returned=%lu wrong=%lu missed=%lu\n", calls, returned, wrong, jp.kp.nmissed + rp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
