// Has a handler overrun its stack: it calls itself for ever, or writes behind an array of its own.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static char *function = "hit";
module_param(function, charp, 0);
static unsigned long deep, smash;
module_param(deep, ulong, 0);
MODULE_PARM_DESC(deep, "the call in which the handler calls itself for ever");
module_param(smash, ulong, 0);
MODULE_PARM_DESC(smash, "the call in which it writes behind an array");

static unsigned long calls, faults;

static noinline unsigned long down(volatile unsigned long n)
{
	volatile char more[200];
	more[n % 200] = n;
	return n ? down(n + 1) + more[n % 200] : 0;
}

static noinline int write(unsigned long n)
{
	char text[16], *to = text;
	__asm__ __volatile__("" : "+r"(to), "+r"(n)); // the compiler knows neither
	for (unsigned long i = 0; i < n; i++)
		to[i] = i;
	return to[0];
}

static int before(struct kprobe *p, struct pt_regs *regs)
{
	unsigned long n = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
	if (deep && n >= deep)
		down(1);
	if (smash && n >= smash)
		write(32);
	return 0;
}

static int on_fault(struct kprobe *p, struct pt_regs *regs, int trap)
{
	__atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
	return 0;
}

static struct kprobe kp = {.pre_handler = before, .fault_handler = on_fault};

static int __init start(void)
{
	kp.symbol_name = function;
	return register_kprobe(&kp);
}

static void __exit end(void)
{
	unregister_kprobe(&kp);
	pr_info("calls=%lu faults=%lu missed=%lu\n", calls, faults, kp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
