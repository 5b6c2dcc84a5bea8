// Its start waits for the program: for a word that becomes another.
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/module.h>

static unsigned long word;
static int result;
module_param(word, ulong, 0);
module_param(result, int, 0);

static int __init start(void)
{
	while (!*(volatile int *)word)
		;
	pr_info("started\n");
	return result;
}

static void __exit end(void) {}

module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
