// Counts calls of what it names do_fork.
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static atomic_t calls;

static int before(struct kprobe *p, struct pt_regs *regs)
{
	atomic_inc(&calls);
	return 0;
}

static struct kprobe kp = {.symbol_name = "do_fork", .pre_handler = before};

static int __init alias_init(void)
{
	pr_info("at %px\n", (void *)kallsyms_lookup_name("do_fork"));
	return register_kprobe(&kp);
}

static void __exit alias_exit(void)
{
	unregister_kprobe(&kp);
	pr_info("%d calls\n", atomic_read(&calls));
}

module_init(alias_init);
module_exit(alias_exit);
MODULE_LICENSE("GPL");
