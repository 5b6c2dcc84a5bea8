// What all kernel code has.
#ifndef _LINUX_KERNEL_H
#define _LINUX_KERNEL_H

#include <linux/bug.h>
#include <linux/container_of.h>
#include <linux/err.h>
#include <linux/kstrtox.h>
#include <linux/minmax.h>
#include <linux/printk.h>
#include <linux/sprintf.h>
#include <linux/stdarg.h>
#include <linux/string.h>
#include <linux/types.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define ALIGN(x, a) (((x) + (a)-1) & ~((typeof(x))(a)-1))
#define PTR_ALIGN(p, a) ((typeof(p))ALIGN((unsigned long)(p), (a)))
#define IS_ALIGNED(x, a) (((x) & ((typeof(x))(a)-1)) == 0)
#define DIV_ROUND_UP(n, d) (((n) + (d)-1) / (d))
#define roundup(x, y)                                                        \
	({                                                                   \
		typeof(y) __kp_y = (y);                                      \
		(((x) + (__kp_y - 1)) / __kp_y) * __kp_y;                    \
	})
#define rounddown(x, y)                                                      \
	({                                                                   \
		typeof(x) __kp_x = (x);                                      \
		__kp_x - __kp_x % (y);                                       \
	})
#define round_up(x, y) ((((x)-1) | ((typeof(x))(y)-1)) + 1)
#define round_down(x, y) ((x) & ~((typeof(x))(y)-1))
#define lower_32_bits(n) ((u32)(n))
#define upper_32_bits(n) ((u32)(((n) >> 16) >> 16))

#include <linux/limits.h>

#define U8_MAX ((u8)~0U)
#define U16_MAX ((u16)~0U)
#define U32_MAX ((u32)~0U)
#define U64_MAX ((u64)~0ULL)
#define S8_MAX ((s8)(U8_MAX >> 1))
#define S16_MAX ((s16)(U16_MAX >> 1))
#define S32_MAX ((s32)(U32_MAX >> 1))
#define S64_MAX ((s64)(U64_MAX >> 1))
#define might_sleep() do {} while (0)
#define cond_resched() 0
#define cpu_relax() __asm__ __volatile__("pause" ::: "memory")

#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
#define PAGE_MASK (~(PAGE_SIZE - 1))

#endif
