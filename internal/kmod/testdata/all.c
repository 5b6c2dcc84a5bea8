// A module that has something of everything.
#define pr_fmt(s) KBUILD_MODNAME ": " s
#include <linux/module.h>
#include <linux/kprobes.h>
#include <linux/bitops.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/math64.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/time.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

static char symbol[KSYM_NAME_LEN] = "work";
module_param_string(symbol, symbol, KSYM_NAME_LEN, 0644);
MODULE_PARM_DESC(symbol, "the function");
static int limit = 3;
module_param(limit, int, 0);
static char *name = "none";
module_param(name, charp, 0);
static bool loud;
module_param_named(noisy, loud, bool, 0);
static unsigned int counts[4], counted;
module_param_array(counts, uint, &counted, 0);

static DEFINE_PER_CPU(unsigned long, hits);
static atomic_t all = ATOMIC_INIT(0);
static DEFINE_SPINLOCK(lock);
static LIST_HEAD(seen);
static u64 sums[64];
unsigned long shared_count;
EXPORT_SYMBOL(shared_count);

struct one {
	struct list_head list;
	unsigned long ip;
	char text[16];
};

static int pre(struct kprobe *p, struct pt_regs *regs)
{
	unsigned long flags;
	char text[16];
	u32 word = 0;

	this_cpu_inc(hits);
	if (atomic_inc_return(&all) > limit)
		return 0;
	spin_lock_irqsave(&lock, flags);
	sums[ilog2(regs->di | 1)] += regs_get_kernel_argument(regs, 1);
	spin_unlock_irqrestore(&lock, flags);
	if (strncpy_from_user_nofault(text, (char *)regs->si, sizeof text) < 0)
		strscpy(text, "?");
	if (get_user(word, (u32 *)regs->dx))
		pr_warn_once("no word at %px\n", (void *)regs->dx);
	pr_info("%s at %p of %.3s by %s[%d]: %*d %5lu %-4u|%#x %lld %c%% %hhu %.*s\n", p->symbol_name, p->addr, text, current->comm, current->pid, 6, -5,
		regs->di, word, 0xbeef, (long long)-1, 'x', (u8)44, 2, name);
	return 0;
}

static void __kprobes post(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
	WARN_ON(p->nmissed && loud);
	pr_debug("flags %lx\n", flags);
	shared_count += hweight64(flags);
}
NOKPROBE_SYMBOL(post);

static struct kprobe probes[2] = {
	{.symbol_name = symbol, .pre_handler = pre, .post_handler = post},
	{.symbol_name = "other", .offset = 4, .pre_handler = pre},
};
static struct kprobe *both[] = {&probes[0], &probes[1]};

static long mirror(int a, const char *b)
{
	pr_info("%d %s\n", a, b);
	jprobe_return();
	return 0;
}
static struct jprobe jumper = {.entry = mirror, .kp = {.symbol_name = "work"}};

static int returned(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	ktime_t *since = (ktime_t *)ri->data;
	pr_info_ratelimited("%lu after %lld ns, %lu jiffies\n", regs_return_value(regs), ktime_to_ns(ktime_sub(ktime_get(), *since)), jiffies);
	return 0;
}
static int entered(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	if (!current->mm)
		return 1;
	*(ktime_t *)ri->data = ktime_get();
	return 0;
}
static struct kretprobe back = {.handler = returned, .entry_handler = entered, .data_size = sizeof(ktime_t), .maxactive = 20, .kp.symbol_name = "work"};

static int __init start(void)
{
	struct one *o = kzalloc(sizeof *o, GFP_KERNEL);
	char text[40];
	int bad, n;

	if (!o)
		return -ENOMEM;
	n = scnprintf(text, sizeof text, "%s-%05d-%#llx", name, limit, 0x1234ULL);
	memcpy(o->text, text, min_t(size_t, n, sizeof o->text));
	list_add_tail(&o->list, &seen);
	if (kstrtoint("-12", 0, &n) || n != -12 || simple_strtoul("0x10", NULL, 0) != 16)
		return -EINVAL;
	bad = register_kprobes(both, ARRAY_SIZE(both));
	if (bad)
		return bad;
	if (!kallsyms_lookup_name("work") || IS_ERR(ERR_PTR(register_jprobe(&jumper))) || register_kretprobe(&back))
		BUG();
	pr_info("%s\n", text);
	return 0;
}

static void __exit stop(void)
{
	struct one *o, *next;
	unsigned long sum = 0;
	int cpu;

	unregister_kretprobe(&back);
	unregister_jprobe(&jumper);
	unregister_kprobes(both, 2);
	for_each_possible_cpu(cpu)
		sum += per_cpu(hits, cpu);
	list_for_each_entry_safe(o, next, &seen, list) {
		list_del(&o->list);
		kfree(o);
	}
	pr_info("%llu hits, %d missed\n", div64_u64(sum, 1), back.nmissed);
}

module_init(start)
module_exit(stop)
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("all of it");
