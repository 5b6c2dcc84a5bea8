// A module that counts calls of add, and keeps what it was told.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>

static int fault_every;
module_param(fault_every, int, 0);
static char *symbol = "add";
module_param(symbol, charp, 0);
static int result;
module_param(result, int, 0);

unsigned long counted, arguments, results, behind;
int fault_in_init;
module_param(fault_in_init, int, 0);

static int before(struct kprobe *p, struct pt_regs *regs)
{
	__atomic_fetch_add(&counted, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&arguments, regs->si, __ATOMIC_RELAXED);
	if (fault_every && regs->si % fault_every == 0)
		*(volatile int *)8 = 0;
	return 0;
}

static void after(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
	__atomic_fetch_add(&behind, 1, __ATOMIC_RELAXED);
}

static struct kprobe kp = {
	.pre_handler = before,
	.post_handler = after,
};

static int __init start(void)
{
	int err;
	kp.symbol_name = symbol;
	err = register_kprobe(&kp);
	if (err)
		return err;
	pr_info("%s is probed at %px by %s\n", symbol, kp.addr, current->comm);
	if (fault_in_init)
		*(volatile int *)16 = 0;
	return result;
}

static void __exit end(void)
{
	unregister_kprobe(&kp);
	pr_info("%lu calls\n", counted);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
