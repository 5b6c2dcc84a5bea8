// Its handler has a signal come on top of it, whose handler in the runtime is probed too; and a return probe that has one instance.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>

static unsigned long sent;

static long call(long nr, long a, long b, long c)
{
	long ret;

	asm volatile("syscall" : "=a"(ret) : "0"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return ret;
}

static int before(struct kprobe *p, struct pt_regs *regs)
{
	call(234, current->tgid, current->pid, 10); // tgkill, SIGUSR1
	sent++;
	return 0;
}

static int nothing(struct kprobe *p, struct pt_regs *regs) { return 0; }

static int back(struct kretprobe_instance *ri, struct pt_regs *regs) { return 0; }

static struct kprobe kp = {.symbol_name = "kprobes.dev/kprobes/modules_test.Sum", .pre_handler = before};
static struct kprobe on_signal = {.symbol_name = "runtime.sigsend", .pre_handler = nothing};
static struct kretprobe rp = {.kp.symbol_name = "kprobes.dev/kprobes/modules_test.Deep", .handler = back, .maxactive = 1};

static int __init start(void)
{
	int err = register_kprobe(&on_signal);

	if (!err)
		err = register_kprobe(&kp);
	if (!err)
		err = register_kretprobe(&rp);
	return err;
}

static void __exit end(void)
{
	unregister_kretprobe(&rp);
	unregister_kprobe(&kp);
	unregister_kprobe(&on_signal);
	pr_info("sent=%lu signals=%lu outer=%lu calls=%d\n", sent, on_signal.nmissed, kp.nmissed, rp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
