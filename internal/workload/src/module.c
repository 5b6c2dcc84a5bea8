// The module of kprobe bench, which registers one probe at ADDR. MODE: 0 its handler counts, 1 it writes a line with four arguments, 2 the two
// handlers of its return probe count. Its end writes what they have counted.
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>

static unsigned long addr;
static int mode;
module_param(addr, ulong, 0);
module_param(mode, int, 0);

static DEFINE_PER_CPU(unsigned long, entries);
static DEFINE_PER_CPU(unsigned long, returns);

static int count(struct kprobe *p, struct pt_regs *regs)
{
	__this_cpu_inc(entries);
	return 0;
}

static int line(struct kprobe *p, struct pt_regs *regs)
{
	pr_info("a=%lx b=%lx c=%lx d=%lx\n", regs->di, regs->si, regs->dx, regs->cx);
	return 0;
}

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	__this_cpu_inc(entries);
	return 0;
}

static int returned(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	__this_cpu_inc(returns);
	return 0;
}

static struct kretprobe rp = {.entry_handler = entry, .handler = returned};

static int __init bench_init(void)
{
	int err;
	rp.kp.addr = (kprobe_opcode_t *)addr;
	if (mode == 2) {
		err = register_kretprobe(&rp);
	} else {
		rp.kp.pre_handler = mode == 1 ? line : count;
		err = register_kprobe(&rp.kp);
	}
	if (!err)
		pr_info("bench optimized %d\n", !!(rp.kp.flags & KPROBE_FLAG_OPTIMIZED));
	return err;
}

static void __exit bench_exit(void)
{
	unsigned long n = 0, m = 0;
	int cpu;
	if (mode == 2)
		unregister_kretprobe(&rp);
	else
		unregister_kprobe(&rp.kp);
	for_each_possible_cpu(cpu) {
		n += per_cpu(entries, cpu);
		m += per_cpu(returns, cpu);
	}
	pr_info("bench entries %lu returns %lu missed %lu\n", n, m, rp.kp.nmissed + rp.nmissed);
}

module_init(bench_init);
module_exit(bench_exit);
MODULE_LICENSE("GPL");
