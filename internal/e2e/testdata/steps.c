// Counts calls of leaf, and of calling, by a kprobe with both handlers and a kretprobe.
#include <linux/kprobes.h>
#include <linux/module.h>

static atomic_t before, after, entries, returns;

static int pre(struct kprobe *p, struct pt_regs *regs)
{
	atomic_inc(&before);
	return 0;
}

static void post(struct kprobe *p, struct pt_regs *regs, unsigned long flags) { atomic_inc(&after); }

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	atomic_inc(&entries);
	return 0;
}

static int returned(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	atomic_inc(&returns);
	return 0;
}

static struct kprobe kp = {.symbol_name = "leaf", .pre_handler = pre, .post_handler = post};
static struct kretprobe rp = {.kp.symbol_name = "calling", .entry_handler = entry, .handler = returned};

static int __init steps_init(void)
{
	int err = register_kprobe(&kp);
	if (err)
		return err;
	err = register_kretprobe(&rp);
	if (err)
		unregister_kprobe(&kp);
	return err;
}

static void __exit steps_exit(void)
{
	unregister_kretprobe(&rp);
	unregister_kprobe(&kp);
	pr_info("before %d after %d entries %d returns %d\n", atomic_read(&before), atomic_read(&after), atomic_read(&entries), atomic_read(&returns));
}

module_init(steps_init);
module_exit(steps_exit);
MODULE_LICENSE("GPL");
