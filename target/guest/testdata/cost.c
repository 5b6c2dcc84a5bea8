// A handler that counts.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>

static DEFINE_PER_CPU(unsigned long, calls);

static int before(struct kprobe *p, struct pt_regs *regs)
{
	this_cpu_inc(calls);
	return 0;
}

static struct kprobe kp = {.symbol_name = "__x64_sys_getppid", .pre_handler = before};

static int __init start(void) { return register_kprobe(&kp); }
static void __exit end(void)
{
	unregister_kprobe(&kp);
	pr_info("%lu calls\n", per_cpu(calls, 0));
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
