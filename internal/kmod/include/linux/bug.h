// What must not happen is told in the log.
#ifndef _LINUX_BUG_H
#define _LINUX_BUG_H

#include <linux/printk.h>

#define WARN(condition, text, ...)                                                            \
	({                                                                                    \
		int __kp_w = !!(condition);                                                   \
		if (unlikely(__kp_w))                                                         \
			printk(KERN_WARNING text, ##__VA_ARGS__);                             \
		unlikely(__kp_w);                                                             \
	})
#define WARN_ON(condition) WARN(condition, "WARNING: at %s:%d %s()\n", __FILE__, __LINE__, __func__)
#define WARN_ONCE(condition, text, ...)                                                       \
	({                                                                                    \
		int __kp_w = !!(condition);                                                   \
		if (unlikely(__kp_w))                                                         \
			printk_once(KERN_WARNING text, ##__VA_ARGS__);                        \
		unlikely(__kp_w);                                                             \
	})
#define WARN_ON_ONCE(condition) WARN_ONCE(condition, "WARNING: at %s:%d %s()\n", __FILE__, __LINE__, __func__)

// BUG ends the handler, as a fault in it does.
#define BUG()                                                                                  \
	do {                                                                                   \
		printk(KERN_CRIT "kernel BUG at %s:%d!\n", __FILE__, __LINE__);                \
		__builtin_trap();                                                              \
	} while (0)
#define BUG_ON(condition)                  \
	do {                               \
		if (unlikely(condition))   \
			BUG();             \
	} while (0)

#endif
