// A module whose start registers a probe and takes it out, as long as somebody arms it.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static int before(struct kprobe *p, struct pt_regs *regs) { return 0; }

static struct kprobe kp = {.symbol_name = "__x64_sys_getppid", .pre_handler = before};

static int __init start(void)
{
	int err, n;
	for (n = 0; n < 1000000; n++) {
		kp.addr = NULL;
		err = register_kprobe(&kp);
		if (err)
			return err;
		unregister_kprobe(&kp);
	}
	return 0;
}

module_init(start);
MODULE_LICENSE("GPL");
