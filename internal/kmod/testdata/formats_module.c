// The side of kernel code: see formats.h.
#include <linux/module.h>

void emit(char what, const void *of, unsigned long bytes);

static char long_text[3000];

void kernel_side(void)
{
	char text[512];
	unsigned long kinds;
	int n;
	memset(long_text, 'x', sizeof long_text);
#define FIRST(text, ...) text
#define F(...)                                        \
	kinds = __kp_arguments(FIRST(__VA_ARGS__, ));     \
	emit('k', &kinds, sizeof kinds);              \
	n = snprintf(text, sizeof text, __VA_ARGS__); \
	emit('s', text, n);                           \
	printk(__VA_ARGS__);
#include "formats.h"
	n = snprintf(text, 5, "%s", "0123456789");
	emit('n', text, n);
	emit('n', text, strlen(text));
	printk("%s %s %d\n", (char *)8, (char *)0, 7);
}
