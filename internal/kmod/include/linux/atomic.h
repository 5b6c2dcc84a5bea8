// Numbers that several threads change.
#ifndef _LINUX_ATOMIC_H
#define _LINUX_ATOMIC_H

#include <linux/types.h>

#define ATOMIC_INIT(v) {(v)}
#define ATOMIC64_INIT(v) {(v)}
#define ATOMIC_LONG_INIT(v) {(v)}

#define __KP_ATOMIC(name, type, value)                                                                                              \
	static inline value name##_read(const type *a) { return __atomic_load_n(&a->counter, __ATOMIC_RELAXED); }                   \
	static inline void name##_set(type *a, value v) { __atomic_store_n(&a->counter, v, __ATOMIC_RELAXED); }                     \
	static inline void name##_add(value v, type *a) { __atomic_fetch_add(&a->counter, v, __ATOMIC_RELAXED); }                   \
	static inline void name##_sub(value v, type *a) { __atomic_fetch_sub(&a->counter, v, __ATOMIC_RELAXED); }                   \
	static inline void name##_inc(type *a) { name##_add(1, a); }                                                                \
	static inline void name##_dec(type *a) { name##_sub(1, a); }                                                                \
	static inline value name##_add_return(value v, type *a) { return __atomic_add_fetch(&a->counter, v, __ATOMIC_SEQ_CST); }    \
	static inline value name##_sub_return(value v, type *a) { return __atomic_sub_fetch(&a->counter, v, __ATOMIC_SEQ_CST); }    \
	static inline value name##_inc_return(type *a) { return name##_add_return(1, a); }                                          \
	static inline value name##_dec_return(type *a) { return name##_sub_return(1, a); }                                          \
	static inline value name##_fetch_add(value v, type *a) { return __atomic_fetch_add(&a->counter, v, __ATOMIC_SEQ_CST); }     \
	static inline bool name##_dec_and_test(type *a) { return name##_sub_return(1, a) == 0; }                                    \
	static inline bool name##_inc_and_test(type *a) { return name##_add_return(1, a) == 0; }                                    \
	static inline value name##_xchg(type *a, value v) { return __atomic_exchange_n(&a->counter, v, __ATOMIC_SEQ_CST); }         \
	static inline value name##_cmpxchg(type *a, value was, value v)                                                             \
	{                                                                                                                           \
		__atomic_compare_exchange_n(&a->counter, &was, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
		return was;                                                                                                         \
	}

__KP_ATOMIC(atomic, atomic_t, int)
__KP_ATOMIC(atomic64, atomic64_t, s64)
__KP_ATOMIC(atomic_long, atomic_long_t, s64)

#define xchg(p, v) __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)
#define cmpxchg(p, was, v)                                                                                   \
	({                                                                                                   \
		typeof(*(p)) __kp_was = (was);                                                               \
		__atomic_compare_exchange_n(p, &__kp_was, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);         \
		__kp_was;                                                                                    \
	})
#define smp_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define smp_rmb() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define smp_wmb() __atomic_thread_fence(__ATOMIC_RELEASE)
#define smp_load_acquire(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define smp_store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

#endif
