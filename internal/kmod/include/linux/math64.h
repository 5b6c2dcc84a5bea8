// Division of 64 bits.
#ifndef _LINUX_MATH64_H
#define _LINUX_MATH64_H

#include <linux/types.h>

#define do_div(n, base)                          \
	({                                       \
		u32 __kp_by = (base);            \
		u32 __kp_rest = (u64)(n) % __kp_by; \
		(n) = (u64)(n) / __kp_by;        \
		__kp_rest;                       \
	})
static inline u64 div_u64(u64 n, u32 by) { return n / by; }
static inline s64 div_s64(s64 n, s32 by) { return n / by; }
static inline u64 div64_u64(u64 n, u64 by) { return n / by; }
static inline u64 div_u64_rem(u64 n, u32 by, u32 *rest)
{
	*rest = n % by;
	return n / by;
}

#endif
