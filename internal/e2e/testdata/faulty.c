// Probes of every kind on the functions of the program work, whose handlers fault at every tenth hit of each. The fault handler has them go on behind the
// instruction, with a number in a register that it was to load.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static int trap = 14;
module_param(trap, int, 0);
MODULE_PARM_DESC(trap, "what happens: 0 division, 6 undefined instruction, 13 protection, 14 page fault, 17 alignment");

enum { GO_ON, GIVE_UP, AGAIN, FAULT_TOO };
static int answer = GO_ON;
module_param(answer, int, 0);
MODULE_PARM_DESC(answer, "what the fault handler does: 0 lets the handler go on, 1 gives it up, 2 lets it try again for ever, 3 faults too");

static unsigned long pre, post, entered, returned, jumped, faults, wrong;
static unsigned long add(unsigned long *n) { return __atomic_add_fetch(n, 1, __ATOMIC_RELAXED); }

static char *only = "";
module_param(only, charp, 0);
MODULE_PARM_DESC(only, "a function of another program: a kprobe stands there, and no other probe anywhere");

#define NUMBER 77

// Each function faults between two labels, and returns what it has in its register then.
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
FAULTING(alignment, "pushfq\n orl $0x40000, (%%rsp)\n popfq\n", "mov 1(%%rsp), %%rax")

static void fault(unsigned long n)
{
	unsigned long v = 0;
	if (n % 10)
		return;
	switch (trap) {
	case 0: v = division(8); break;
	case 6: v = undefined(8); break;
	case 13: v = page(1UL << 63 | 8); break;
	case 14: v = page(8); break;
	case 17: v = alignment(8); break;
	}
	if (v != NUMBER)
		add(&wrong);
}

static int on_fault(struct kprobe *p, struct pt_regs *regs, int nr)
{
	unsigned long at[] = {(unsigned long)page_at, (unsigned long)undefined_at, (unsigned long)division_at, (unsigned long)alignment_at};
	unsigned long behind[] = {(unsigned long)page_behind, (unsigned long)undefined_behind, (unsigned long)division_behind, (unsigned long)alignment_behind};

	add(&faults);
	if (nr != trap || !p->symbol_name)
		add(&wrong);
	if (answer == FAULT_TOO)
		page(16);
	if (answer == GIVE_UP)
		return 0;
	for (int i = 0; i < 4 && answer == GO_ON; i++)
		if (regs->ip == at[i]) {
			regs->ip = behind[i];
			regs->ax = NUMBER;
			regs->flags &= ~0x40000UL;
			return 1;
		}
	if (answer == GO_ON)
		add(&wrong);
	return 1;
}

static int before(struct kprobe *p, struct pt_regs *regs)
{
	fault(add(&pre));
	return 0;
}

static void after(struct kprobe *p, struct pt_regs *regs, unsigned long flags) { fault(add(&post)); }

static int entry(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	fault(add(&entered));
	return 0;
}

static int back(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	fault(add(&returned));
	return 0;
}

static unsigned long jsix(unsigned long a, unsigned long b, unsigned long c, unsigned long d, unsigned long e, unsigned long f)
{
	fault(add(&jumped));
	if (b != a + 1 || f != a + 5)
		add(&wrong);
	jprobe_return();
	return 0;
}

static struct kprobe kp = {.symbol_name = "f_lea", .pre_handler = before, .post_handler = after, .fault_handler = on_fault};
static struct kretprobe rp = {.kp.symbol_name = "f_push", .kp.fault_handler = on_fault, .entry_handler = entry, .handler = back, .maxactive = 64};
static struct jprobe jp = {.kp.symbol_name = "f_six", .kp.fault_handler = on_fault, .entry = JPROBE_ENTRY(jsix)};

static int __init start(void)
{
	if (*only) {
		kp.symbol_name = only;
		return register_kprobe(&kp);
	}
	return register_kprobe(&kp) ?: register_kretprobe(&rp) ?: register_jprobe(&jp);
}

static void __exit end(void)
{
	unregister_kprobe(&kp);
	unregister_kretprobe(&rp);
	unregister_jprobe(&jp);
	pr_info("pre=%lu post=%lu entered=%lu returned=%lu jumped=%lu faults=%lu wrong=%lu missed=%lu\n", pre, post, entered, returned, jumped, faults, wrong,
		kp.nmissed + rp.kp.nmissed + jp.kp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
