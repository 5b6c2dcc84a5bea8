// A handler that calls a function in which another handler of the module is: that one is missed.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/uaccess.h>

static unsigned long outer, inner, wrong;

static int reads(struct kprobe *p, struct pt_regs *regs)
{
	char byte;
	if (strncmp(current->comm, "hit", 3))
		return 0;
	__atomic_fetch_add(&outer, 1, __ATOMIC_RELAXED);
	if (copy_from_kernel_nofault(&byte, p->addr, 1))
		__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
	return 0;
}

static int nested(struct kprobe *p, struct pt_regs *regs)
{
	if (!strncmp(current->comm, "hit", 3))
		__atomic_fetch_add(&inner, 1, __ATOMIC_RELAXED);
	return 0;
}

static struct kprobe getppid = {.symbol_name = "__x64_sys_getppid", .pre_handler = reads};
static struct kprobe copy = {.symbol_name = "copy_from_kernel_nofault", .pre_handler = nested};
static struct kprobe *both[] = {&copy, &getppid};

static int __init start(void) { return register_kprobes(both, 2); }

static void __exit end(void)
{
	unregister_kprobes(both, 2);
	pr_info("outer=%lu wrong=%lu missed=%lu+%lu inner=%lu\n", outer, wrong, getppid.nmissed, copy.nmissed, inner);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
