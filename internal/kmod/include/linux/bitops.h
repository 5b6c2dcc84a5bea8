// Bits.
#ifndef _LINUX_BITOPS_H
#define _LINUX_BITOPS_H

#include <linux/types.h>

#define BITS_PER_LONG 64
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) (1ULL << (n))
#define GENMASK(high, low) ((~0UL << (low)) & (~0UL >> (63 - (high))))

static inline void set_bit(long n, volatile unsigned long *p) { __atomic_fetch_or(p + n / 64, BIT(n % 64), __ATOMIC_RELAXED); }
static inline void clear_bit(long n, volatile unsigned long *p) { __atomic_fetch_and(p + n / 64, ~BIT(n % 64), __ATOMIC_RELAXED); }
static inline bool test_bit(long n, const volatile unsigned long *p) { return p[n / 64] >> (n % 64) & 1; }
static inline bool test_and_set_bit(long n, volatile unsigned long *p)
{
	return __atomic_fetch_or(p + n / 64, BIT(n % 64), __ATOMIC_SEQ_CST) >> (n % 64) & 1;
}
static inline bool test_and_clear_bit(long n, volatile unsigned long *p)
{
	return __atomic_fetch_and(p + n / 64, ~BIT(n % 64), __ATOMIC_SEQ_CST) >> (n % 64) & 1;
}
static inline int fls(unsigned int x) { return x ? 32 - __builtin_clz(x) : 0; }
static inline int fls64(u64 x) { return x ? 64 - __builtin_clzll(x) : 0; }
static inline int ffs(int x) { return __builtin_ffs(x); }
static inline int ilog2(u64 x) { return fls64(x) - 1; }
static inline bool is_power_of_2(unsigned long x) { return x && !(x & (x - 1)); }
static inline unsigned int hweight64(u64 x)
{
	unsigned int n = 0;
	for (; x; x &= x - 1)
		n++;
	return n;
}
static inline unsigned int hweight32(u32 x) { return hweight64(x); }

#endif
