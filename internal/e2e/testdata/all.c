// Probes of every kind on the functions of the program work: they count, and look at arguments and results.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>

static DEFINE_PER_CPU(unsigned long, simple);
static unsigned long behind, returned, six, big, wrong;

static void count(unsigned long *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

static struct kprobe lea, endbr;

static int before(struct kprobe *p, struct pt_regs *regs)
{
	this_cpu_inc(simple);
	if (p == &endbr && regs->si != regs->di + 1) // f_push calls f_lea too
		count(&wrong);
	return 0;
}

// again makes a text of a number and a number of the text, in memory on the stack.
static noinline unsigned long again(unsigned long n)
{
	char text[24];
	unsigned long back = 0;
	snprintf(text, sizeof(text), "%lu", n);
	return kstrtoul(text, 10, &back) ? 0 : back;
}

static void after(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
	count(&behind);
	if (again(regs->di) != regs->di)
		count(&wrong);
}

static struct kprobe lea = {.symbol_name = "f_lea", .pre_handler = before, .post_handler = after};
static struct kprobe endbr = {.symbol_name = "f_endbr", .pre_handler = before};
static struct kprobe *kprobes[] = {&lea, &endbr};

struct call {
	unsigned long a;
	struct task_struct *task;
};

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *c = (struct call *)ri->data;
	c->a = regs->di;
	c->task = ri->task;
	return regs->di % 4 == 3; // these calls' returns are not told of
}

static int back(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *c = (struct call *)ri->data;
	count(&returned);
	if (regs_return_value(regs) != 2 * c->a + 2 || c->a % 4 == 3 || !ri->ret_addr)
		count(&wrong);
	return 0;
}

static struct kretprobe push = {
	.kp.symbol_name = "f_push", .entry_handler = entry, .handler = back, .data_size = sizeof(struct call), .maxactive = 64};

static unsigned long jsix(unsigned long a, unsigned long b, unsigned long c, unsigned long d, unsigned long e, unsigned long f)
{
	count(&six);
	if (b != a + 1 || c != a + 2 || d != a + 3 || e != a + 4 || f != a + 5)
		count(&wrong);
	jprobe_return();
	return 0;
}

struct big {
	unsigned long v[6];
};

static unsigned long jbig(struct big b)
{
	count(&big);
	for (int i = 1; i < 6; i++)
		if (b.v[i] != b.v[0] + i)
			count(&wrong);
	return 0; // jprobe_return does the same
}

static struct jprobe jp_six = {.kp.symbol_name = "f_six", .entry = JPROBE_ENTRY(jsix)};
static struct jprobe jp_big = {.kp.symbol_name = "f_big", .entry = JPROBE_ENTRY(jbig)};
static struct jprobe *jprobes[] = {&jp_six, &jp_big};

static int __init start(void)
{
	int err = register_kprobes(kprobes, 2);
	if (err)
		return err;
	err = register_kretprobe(&push);
	if (err)
		return err;
	return register_jprobes(jprobes, 2);
}

static void __exit end(void)
{
	unsigned long sum = 0;
	int cpu;

	unregister_kprobes(kprobes, 2);
	unregister_kretprobe(&push);
	unregister_jprobes(jprobes, 2);
	for_each_possible_cpu(cpu)
		sum += per_cpu(simple, cpu);
	pr_info("simple=%lu behind=%lu returned=%lu six=%lu big=%lu wrong=%lu missed=%lu\n", sum, behind, returned, six, big, wrong,
		lea.nmissed + endbr.nmissed + push.nmissed + jp_six.kp.nmissed + jp_big.kp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
