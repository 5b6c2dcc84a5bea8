// Its handler faults at the hit of a number, or does not end.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static unsigned long calls, at = 100;
static char *how = "none", *when = "handler";
module_param(at, ulong, 0);
module_param(how, charp, 0);
module_param(when, charp, 0);

static volatile unsigned long zero;

static void fault(void)
{
	switch (how[0]) {
	case 'm': // memory
		*(volatile long *)zero = 1;
		break;
	case 'd': // division
		zero = at / zero;
		break;
	case 'i': // instruction
		__builtin_trap();
	case 'l': // loop
		while (!zero)
			;
	}
}

static int before(struct kprobe *p, struct pt_regs *regs)
{
	if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) == at)
		fault();
	return 0;
}

static struct kprobe kp = {.symbol_name = "kprobes.dev/kprobes/modules_test.Sum", .pre_handler = before};

static int __init start(void)
{
	int err = register_kprobe(&kp);

	if (!err && when[0] == 's')
		fault();
	return err;
}

static void __exit end(void)
{
	unregister_kprobe(&kp);
	pr_info("calls=%lu\n", calls);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
