// The limits of numbers, names and paths (include/uapi/linux/limits.h and include/vdso/limits.h, Linux 6.18).
#ifndef _LINUX_LIMITS_H
#define _LINUX_LIMITS_H

#define NAME_MAX 255
#define PATH_MAX 4096
#define USHRT_MAX ((unsigned short)~0U)
#define SHRT_MAX ((short)(USHRT_MAX >> 1))
#define SHRT_MIN ((short)(-SHRT_MAX - 1))
#define INT_MAX ((int)(~0U >> 1))
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX (~0U)
#define LONG_MAX ((long)(~0UL >> 1))
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX (~0UL)
#define LLONG_MAX ((long long)(~0ULL >> 1))
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX (~0ULL)
#define UINTPTR_MAX ULONG_MAX
#define SIZE_MAX (~0UL)

#endif
