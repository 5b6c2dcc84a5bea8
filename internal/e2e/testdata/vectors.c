// Sums and copies arrays where the function vec_leaf is called: a compiler makes vector instructions of that.
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC reset_options // the headers ask for general registers alone
#endif

#define N 64

static unsigned calls, wrong;
static int from[N], to[N];
static float thirds[N];

static int before(struct kprobe *p, struct pt_regs *regs)
{
	unsigned v = regs->di, sum = 0;
	for (int i = 0; i < N; i++)
		from[i] = v + i;
	for (int i = 0; i < N; i++)
		to[i] = 3 * from[i] ^ i;
	for (int i = 0; i < N; i++)
		sum += from[i] + to[i] - (3 * from[i] ^ i);
	for (int i = 0; i < N; i++)
		thirds[i] = (v % 1000 + i) / 3.0f;
	calls++;
	if (sum != N * v + N * (N - 1) / 2 || (int)(thirds[N - 1] * 3.0f + 0.5f) != (int)(v % 1000) + N - 1)
		wrong++;
	return 0;
}

static struct kprobe kp = {.symbol_name = "vec_leaf", .pre_handler = before};

static int __init start(void) { return register_kprobe(&kp); }

static void __exit end(void)
{
	unregister_kprobe(&kp);
	pr_info("calls=%u wrong=%u missed=%lu\n", calls, wrong, kp.nmissed);
}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
