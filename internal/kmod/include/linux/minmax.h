// The smaller and the larger of two.
#ifndef _LINUX_MINMAX_H
#define _LINUX_MINMAX_H

#include <linux/compiler.h>

#define __kp_choose(x, op, y, a, b)          \
	({                                   \
		typeof(x) a = (x);           \
		typeof(y) b = (y);           \
		a op b ? a : b;              \
	})
#define min(x, y) __kp_choose(x, <, y, __UNIQUE_ID(kpa), __UNIQUE_ID(kpb))
#define max(x, y) __kp_choose(x, >, y, __UNIQUE_ID(kpa), __UNIQUE_ID(kpb))
#define min_t(type, x, y) min((type)(x), (type)(y))
#define max_t(type, x, y) max((type)(x), (type)(y))
#define clamp(v, lo, hi) min((typeof(v))max(v, lo), hi)
#define clamp_t(type, v, lo, hi) clamp((type)(v), (type)(lo), (type)(hi))
#define swap(a, b)                              \
	do {                                    \
		typeof(a) __kp_t = (a);         \
		(a) = (b);                      \
		(b) = __kp_t;                   \
	} while (0)
#define abs(x)                                  \
	({                                      \
		typeof(x) __kp_x = (x);         \
		__kp_x < 0 ? -__kp_x : __kp_x;  \
	})

#endif
