// A leaf function that keeps an array on the stack, in the red zone if the compiler may use that, and vector registers if VECTORS is defined.
#include <linux/kernel.h>
#include <linux/module.h>

static volatile int three = 3;

static noinline int leaf(int n)
{
	volatile int v[8], times = n;
	int i, sum = 0;
	for (i = 0; i < 8; i++)
		v[i] = i * n;
	for (i = 0; i < n; i++)
		sum += v[i];
	return sum / times;
}

static int __init start(void)
{
#ifdef VECTORS
	__asm__ __volatile__("pxor %xmm0, %xmm0");
#endif
	pr_info("%d\n", leaf(three));
	return 0;
}

static void __exit end(void) {}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
