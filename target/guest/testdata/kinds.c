// Probes of every kind on functions that programs of the guest call: they count, and look at arguments and results.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

static DEFINE_PER_CPU(unsigned long, simple);
unsigned long behind, returned, dropped, owners, absent, wrong;

static void count(unsigned long *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

// ours says whether it is a program of the test that calls.
static bool ours(void) { return !strncmp(current->comm, "hit", 3); }

static int before(struct kprobe *p, struct pt_regs *regs)
{
	if (!ours())
		return 0;
	this_cpu_inc(simple);
	// it stands behind what is the function tracer's
	if (regs->ip - (unsigned long)p->addr > 16 || regs->cs & 3 || !(regs->flags & 0x200) || (unsigned)smp_processor_id() >= nr_cpu_ids - 1)
		count(&wrong);
	return 0;
}

static void after(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
	if (!ours())
		return;
	count(&behind);
	if (regs->ip <= (unsigned long)p->addr || regs->ip > (unsigned long)p->addr + 32)
		count(&wrong);
}

static struct kprobe getppid = {.symbol_name = "__x64_sys_getppid", .pre_handler = before, .post_handler = after};

struct call {
	unsigned long n;
	struct task_struct *task;
};

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *c = (struct call *)ri->data;
	static unsigned long calls;
	if (!ours() || !current->mm)
		return 1;
	c->n = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
	c->task = ri->task;
	if (c->n % 4)
		return 0;
	count(&dropped);
	return 1; // these calls' returns are not told of
}

static int back(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *c = (struct call *)ri->data;
	count(&returned);
	if ((int)regs_return_value(regs) != -2 || c->n % 4 == 0 || !c->task || !ri->ret_addr)
		count(&wrong);
	return 0;
}

static struct kretprobe openat2 = {
	.kp.symbol_name = "do_sys_openat2", .entry_handler = entry, .handler = back, .data_size = sizeof(struct call)};

static long jchown(int dfd, const char __user *name, unsigned user, unsigned group, int flag)
{
	char text[16];
	if (ours()) {
		count(&owners);
		long len = strncpy_from_user_nofault(text, name, sizeof text);
		if (user != 7 || group != 8 || len != -EFAULT && (len != 9 || strcmp(text, "/no/such")))
			count(&wrong);
		if (len == -EFAULT) // the program has not touched the page yet
			count(&absent);
	}
	jprobe_return();
	return 0;
}

static struct jprobe chown = {.kp.symbol_name = "do_fchownat", .entry = JPROBE_ENTRY(jchown)};

static int __init start(void)
{
	char byte;
	int err = register_kprobe(&getppid);
	if (!err)
		err = register_kretprobe(&openat2);
	if (!err)
		err = register_jprobe(&chown);
	if (err)
		return err;
	if (copy_from_kernel_nofault(&byte, (void *)kallsyms_lookup_name("linux_banner"), 1) || byte != 'L' ||
	    copy_from_kernel_nofault(&byte, (void *)-4096L, 1) != -EFAULT)
		count(&wrong);
	pr_info("%s %d starts with %px\n", current->comm, current->pid, getppid.addr);
	return 0;
}

static void __exit end(void)
{
	unsigned long sum = 0;
	int cpu;

	unregister_kprobe(&getppid);
	unregister_kretprobe(&openat2);
	unregister_jprobe(&chown);
	for_each_possible_cpu(cpu)
		sum += per_cpu(simple, cpu);
	pr_info("simple=%lu behind=%lu returned=%lu dropped=%lu owners=%lu absent=%lu wrong=%lu missed=%lu\n", sum, behind, returned, dropped, owners,
		absent, wrong, getppid.nmissed + openat2.nmissed + chown.kp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
