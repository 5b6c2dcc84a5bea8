// Counts the calls of a function, and tells of each.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

#define pr_line(text, ...) pr_info("%s: " text, KBUILD_MODNAME, ##__VA_ARGS__)

static char *symbol = "do_fchownat";
module_param(symbol, charp, 0644);
MODULE_PARM_DESC(symbol, "the function");
static int fault;
module_param(fault, int, 0);
static unsigned long loop;
module_param(loop, ulong, 0);
static unsigned long calls;
static volatile int *volatile nowhere = (int *)8;

static int before(struct kprobe *p, struct pt_regs *regs)
{
	unsigned long n = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
	pr_line("call %lu at %pS, dfd %d, name %s\n", n, p->addr, (int)regs->di, (char *)regs->si);
	if (fault && n % fault == 0)
		*nowhere = 0;
	while (loop && n >= loop)
		barrier();
	return 0;
}

static struct kprobe kp = {
	.pre_handler = before,
};

static int __init start(void)
{
	int err;
	kp.symbol_name = symbol;
	err = register_kprobe(&kp);
	if (err < 0) {
		pr_line("register_kprobe: %d\n", err);
		return err;
	}
	pr_line("at %px\n", kp.addr);
	return 0;
}

static void __exit end(void)
{
	unregister_kprobe(&kp);
	pr_line("%lu calls\n", calls);
}

module_init(start)
module_exit(end)
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("counts calls");
