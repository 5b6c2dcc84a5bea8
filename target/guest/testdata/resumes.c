// A probe of which handlers of each kind fault at every tenth hit, in one of several ways, and whose fault handler has them go on behind the instruction, with a number
// in a register that it was to load.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>

static int trap = 14;
module_param(trap, int, 0);
static int answer; // of the fault handler: 0 the handler goes on, 1 it is given up, 2 the fault handler faults too
module_param(answer, int, 0);

#define NUMBER 77

static unsigned long pre, post, entered, returned, faults, wrong;
static unsigned long add(unsigned long *n) { return __atomic_add_fetch(n, 1, __ATOMIC_RELAXED); }

#define FAULTING(name, prepare, insn)                                                                            \
	extern char name##_at[], name##_behind[];                                                                \
	static noinline unsigned long name(unsigned long v)                                                      \
	{                                                                                                        \
		__asm__ __volatile__(prepare #name "_at: " insn "\n" #name "_behind:\n" : "+a"(v)::"rdx", "cc"); \
		return v;                                                                                        \
	}
FAULTING(page, "", "mov (%%rax), %%rax")
FAULTING(undefined, "", "ud2")
FAULTING(division, "xor %%edx, %%edx\n", "div %%rdx")

static void fault(unsigned long n)
{
	unsigned long v = 0;
	if (n % 10)
		return;
	switch (trap) {
	case 0: v = division(8); break;
	case 6: v = undefined(8); break;
	case 13: v = page(1UL << 62 | 8); break;
	case 14: v = page(n % 20 ? 8 : -8192UL); break;
	}
	if (v != NUMBER)
		add(&wrong);
}

static int on_fault(struct kprobe *p, struct pt_regs *regs, int nr)
{
	unsigned long at[] = {(unsigned long)page_at, (unsigned long)undefined_at, (unsigned long)division_at};
	unsigned long behind[] = {(unsigned long)page_behind, (unsigned long)undefined_behind, (unsigned long)division_behind};

	add(&faults);
	if (nr != trap || !p->symbol_name)
		add(&wrong);
	if (answer == 2)
		page(16);
	for (int i = 0; i < 3 && !answer; i++)
		if (regs->ip == at[i]) {
			regs->ip = behind[i];
			regs->ax = NUMBER;
			return 1;
		}
	if (!answer)
		add(&wrong);
	return 0;
}

static bool ours(void) { return !strncmp(current->comm, "hit", 3); }

static int before(struct kprobe *p, struct pt_regs *regs)
{
	if (ours())
		fault(add(&pre));
	return 0;
}

static void after(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
	if (ours())
		fault(add(&post));
}

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	if (ours())
		fault(add(&entered));
	return 0;
}

static int back(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	if (ours())
		fault(add(&returned));
	return 0;
}

static struct kprobe kp = {.symbol_name = "__x64_sys_getppid", .pre_handler = before, .post_handler = after, .fault_handler = on_fault};
static struct kretprobe rp = {.kp.symbol_name = "__x64_sys_getppid", .kp.fault_handler = on_fault, .entry_handler = entry, .handler = back};

static int __init start(void) { return register_kprobe(&kp) ?: register_kretprobe(&rp); }

static void __exit end(void)
{
	unregister_kprobe(&kp);
	unregister_kretprobe(&rp);
	pr_info("pre=%lu post=%lu entered=%lu returned=%lu faults=%lu wrong=%lu\n", pre, post, entered, returned, faults, wrong);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
