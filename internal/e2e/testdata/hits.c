// Counts calls of a function, by a kprobe and a kretprobe, in a variable of each CPU. At some hits the program's function hit is called by a handler, or by a
// signal handler on top of one: these are missed.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>

static unsigned long recurse, signals;
module_param(recurse, ulong, 0);
MODULE_PARM_DESC(recurse, "at every so many hits on a CPU the handler calls the function itself");
module_param(signals, ulong, 0);
MODULE_PARM_DESC(signals, "at every so many returns on a CPU the handler has a signal handler call it");

static DEFINE_PER_CPU(unsigned long, counted);
static DEFINE_PER_CPU(unsigned long, entered);
static DEFINE_PER_CPU(unsigned long, returned);
static unsigned long wrong;
static void (*nested_hit)(void), (*nested_signal)(void);

static int before(struct kprobe *p, struct pt_regs *regs)
{
	unsigned long n = this_cpu_inc_return(counted);
	if (recurse && n % recurse == 0)
		nested_hit();
	return 0;
}

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	this_cpu_inc(entered);
	*(unsigned long *)ri->data = regs->di;
	return 0;
}

static int back(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	unsigned long v = *(unsigned long *)ri->data, n = this_cpu_inc_return(returned);
	if (regs_return_value(regs) != ((7 * v) ^ (v >> 3)))
		__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
	if (signals && n % signals == 0)
		nested_signal();
	return 0;
}

static struct kprobe kp = {.symbol_name = "hit", .pre_handler = before};
static struct kretprobe rp = {.kp.symbol_name = "hit", .entry_handler = entry, .handler = back, .data_size = sizeof(long), .maxactive = 64};

static int __init start(void)
{
	int err;
	nested_hit = (void *)kallsyms_lookup_name("nested_hit");
	nested_signal = (void *)kallsyms_lookup_name("nested_signal");
	if (!nested_hit || !nested_signal)
		return -ENOENT;
	err = register_kprobe(&kp);
	return err ?: register_kretprobe(&rp);
}

static void __exit end(void)
{
	unsigned long n = 0, in = 0, out = 0;
	int cpu;

	unregister_kprobe(&kp);
	unregister_kretprobe(&rp);
	for_each_possible_cpu(cpu) {
		n += per_cpu(counted, cpu);
		in += per_cpu(entered, cpu);
		out += per_cpu(returned, cpu);
	}
	pr_info("counted=%lu missed=%lu entered=%lu returned=%lu unentered=%lu uncalled=%d wrong=%lu\n", n, kp.nmissed, in, out, rp.kp.nmissed,
		rp.nmissed, wrong);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
