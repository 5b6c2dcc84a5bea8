// A module whose handler, or start, goes wrong in one of several ways.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>

static char *handler = "", *init = "";
module_param(handler, charp, 0);
module_param(init, charp, 0);
static int result;
module_param(result, int, 0);
static unsigned long first = 1;
module_param(first, ulong, 0);

static unsigned long calls;
static volatile int zero;

static void go_wrong(const char *how)
{
	if (!strcmp(how, "null"))
		*(volatile int *)8 = 0;
	if (!strcmp(how, "kernel"))
		(void)*(volatile int *)-8192L;
	if (!strcmp(how, "odd")) // no address
		(void)*(volatile int *)0x1234567890abcdefL;
	if (!strcmp(how, "divide"))
		zero = 1000 / zero;
	if (!strcmp(how, "trap"))
		__builtin_trap();
	while (!strcmp(how, "loop"))
		barrier();
}

static int before(struct kprobe *p, struct pt_regs *regs)
{
	if (!strncmp(current->comm, "hit", 3) && ++calls >= first)
		go_wrong(handler);
	return 0;
}

static struct kprobe kp = {.symbol_name = "__x64_sys_getppid", .pre_handler = before};

static int __init start(void)
{
	int err = register_kprobe(&kp);
	if (err)
		return err;
	go_wrong(init);
	return result;
}

static void __exit end(void)
{
	unregister_kprobe(&kp);
	pr_info("%lu calls\n", calls);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
