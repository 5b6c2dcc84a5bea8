// Memory that may not be there.
#ifndef _LINUX_UACCESS_H
#define _LINUX_UACCESS_H

#include <linux/errno.h>
#include <linux/kp_runtime.h>

static inline unsigned long copy_from_user(void *to, const void *from, unsigned long n) { return __kp_copy(to, from, n); }
static inline unsigned long copy_to_user(void *to, const void *from, unsigned long n) { return __kp_copy(to, from, n); }
#define __copy_from_user copy_from_user
#define __copy_to_user copy_to_user
#define copy_from_user_inatomic copy_from_user
#define __copy_from_user_inatomic copy_from_user
static inline long copy_from_kernel_nofault(void *to, const void *from, size_t n) { return __kp_copy(to, from, n) ? -EFAULT : 0; }
static inline long copy_from_user_nofault(void *to, const void *from, size_t n) { return __kp_copy(to, from, n) ? -EFAULT : 0; }
#define probe_kernel_read copy_from_kernel_nofault
#define probe_user_read copy_from_user_nofault
static inline long strncpy_from_user(char *to, const char *from, long n)
{
	return n > 0 ? __kp_copy_string(to, from, (unsigned long)n) : 0;
}
static inline long strncpy_from_user_nofault(char *to, const char *from, long n)
{
	long len = strncpy_from_user(to, from, n);
	return len < 0 ? len : len + 1;
}
#define strncpy_from_kernel_nofault strncpy_from_user_nofault
#define strncpy_from_unsafe strncpy_from_user_nofault
#define get_user(v, p)                                                                       \
	({                                                                                   \
		unsigned long __kp_v = 0; /* *p may be const */                              \
		int __kp_bad = __kp_copy(&__kp_v, (p), sizeof(*(p))) ? -EFAULT : 0;          \
		(v) = (typeof(*(p)))__kp_v;                                                  \
		__kp_bad;                                                                    \
	})
#define put_user(v, p)                                                                       \
	({                                                                                   \
		typeof(*(p)) __kp_v = (v);                                                   \
		__kp_copy((p), &__kp_v, sizeof __kp_v) ? -EFAULT : 0;                        \
	})
#define access_ok(...) 1
#define pagefault_disable() do {} while (0)
#define pagefault_enable() do {} while (0)

#endif
