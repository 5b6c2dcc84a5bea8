// A return handler that its probe's fault handler has go on behind an instruction that is none, where it changes what the function has returned.
#include <linux/kprobes.h>
#include <linux/module.h>

extern char resumed[];

static int returned(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	__asm__ __volatile__("ud2\nresumed:");
	regs->ax = -2;
	return 0;
}

static int on_fault(struct kprobe *p, struct pt_regs *regs, int nr)
{
	regs->ip = (unsigned long)resumed;
	return 1;
}

static struct kretprobe rp = {.kp.symbol_name = "sys_open", .kp.fault_handler = on_fault, .handler = returned};

static int __init start(void) { return register_kretprobe(&rp); }
static void __exit end(void) { unregister_kretprobe(&rp); }

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
