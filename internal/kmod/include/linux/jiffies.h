// Ticks of a millisecond.
#ifndef _LINUX_JIFFIES_H
#define _LINUX_JIFFIES_H

#include <linux/ktime.h>

#define HZ CONFIG_HZ
#define jiffies ((unsigned long)(__kp_nanoseconds() / (NSEC_PER_SEC / HZ)))
#define jiffies_64 ((u64)jiffies)
#define get_jiffies_64() jiffies_64
#define time_after(a, b) ((long)((b) - (a)) < 0)
#define time_before(a, b) time_after(b, a)
#define time_after_eq(a, b) ((long)((a) - (b)) >= 0)
#define time_before_eq(a, b) time_after_eq(b, a)
#define jiffies_to_msecs(j) ((unsigned int)((j) * (MSEC_PER_SEC / HZ)))
#define jiffies_to_usecs(j) ((unsigned int)((j) * (USEC_PER_SEC / HZ)))
#define msecs_to_jiffies(ms) ((unsigned long)(ms) * HZ / MSEC_PER_SEC)

#endif
