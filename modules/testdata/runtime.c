// Counts where the runtime's own code runs: on a signal's stack, and where goroutines are chosen.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static unsigned long signals, choices;

static int on_signal(struct kprobe *p, struct pt_regs *regs)
{
	if ((unsigned int)regs->ax == 10) // SIGUSR1
		__atomic_fetch_add(&signals, 1, __ATOMIC_RELAXED);
	return 0;
}

static int on_choice(struct kprobe *p, struct pt_regs *regs)
{
	__atomic_fetch_add(&choices, 1, __ATOMIC_RELAXED);
	return 0;
}

static struct kprobe kps[] = {
	{.symbol_name = "runtime.sigsend", .pre_handler = on_signal},
	{.symbol_name = "runtime.schedule", .pre_handler = on_choice},
};
static struct kprobe *all[] = {&kps[0], &kps[1]};

static int __init start(void) { return register_kprobes(all, 2); }

static void __exit end(void)
{
	unregister_kprobes(all, 2);
	pr_info("signals=%lu choices=%d\n", signals, choices > 0);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
