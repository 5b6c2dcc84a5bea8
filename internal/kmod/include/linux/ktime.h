// Time, in nanoseconds.
#ifndef _LINUX_KTIME_H
#define _LINUX_KTIME_H

#include <linux/kp_runtime.h>

typedef s64 ktime_t;

#define NSEC_PER_USEC 1000L
#define NSEC_PER_MSEC 1000000L
#define NSEC_PER_SEC 1000000000L
#define USEC_PER_MSEC 1000L
#define USEC_PER_SEC 1000000L
#define MSEC_PER_SEC 1000L

struct timespec64 {
	time64_t tv_sec;
	long tv_nsec;
};

static inline ktime_t ktime_get(void) { return (ktime_t)__kp_nanoseconds(); }
static inline u64 ktime_get_ns(void) { return __kp_nanoseconds(); }
static inline u64 ktime_get_mono_fast_ns(void) { return __kp_nanoseconds(); }
static inline u64 local_clock(void) { return __kp_nanoseconds(); }
static inline u64 sched_clock(void) { return __kp_nanoseconds(); }
static inline ktime_t ktime_set(s64 seconds, unsigned long ns) { return seconds * NSEC_PER_SEC + (s64)ns; }
static inline ktime_t ktime_add(ktime_t a, ktime_t b) { return a + b; }
static inline ktime_t ktime_sub(ktime_t a, ktime_t b) { return a - b; }
static inline ktime_t ktime_add_ns(ktime_t a, u64 ns) { return a + (s64)ns; }
static inline s64 ktime_to_ns(ktime_t t) { return t; }
static inline s64 ktime_to_us(ktime_t t) { return t / NSEC_PER_USEC; }
static inline s64 ktime_to_ms(ktime_t t) { return t / NSEC_PER_MSEC; }
static inline s64 ktime_us_delta(ktime_t a, ktime_t b) { return ktime_to_us(a - b); }
static inline s64 ktime_ms_delta(ktime_t a, ktime_t b) { return ktime_to_ms(a - b); }
static inline int ktime_compare(ktime_t a, ktime_t b) { return a < b ? -1 : a > b; }
static inline ktime_t ns_to_ktime(u64 ns) { return (ktime_t)ns; }
static inline void ktime_get_ts64(struct timespec64 *t)
{
	u64 ns = __kp_nanoseconds();
	t->tv_sec = (time64_t)(ns / NSEC_PER_SEC);
	t->tv_nsec = (long)(ns % NSEC_PER_SEC);
}

#endif
