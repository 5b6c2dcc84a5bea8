// Strings and memory. The first five are also called by what compilers make, and __stack_chk_fail.
#ifndef _LINUX_STRING_H
#define _LINUX_STRING_H

#include <linux/errno.h>
#include <linux/types.h>

__weak void *memcpy(void *to, const void *from, size_t n)
{
	void *p = to;
	__asm__ __volatile__("rep movsb" : "+D"(p), "+S"(from), "+c"(n)::"memory");
	return to;
}

__weak void *memset(void *to, int c, size_t n)
{
	void *p = to;
	__asm__ __volatile__("rep stosb" : "+D"(p), "+c"(n) : "a"(c) : "memory");
	return to;
}

__weak void *memmove(void *to, const void *from, size_t n)
{
	if ((unsigned long)to - (unsigned long)from >= n)
		return memcpy(to, from, n);
	char *d = (char *)to + n;
	const char *s = (const char *)from + n;
	while (n--) {
		*--d = *--s;
		barrier(); // or it would be made a call of itself
	}
	return to;
}

__weak int memcmp(const void *a, const void *b, size_t n)
{
	const u8 *p = a, *q = b;
	for (; n; n--, p++, q++)
		if (*p != *q)
			return *p < *q ? -1 : 1;
	return 0;
}

__weak size_t strlen(const char *s)
{
	size_t n = 0;
	for (; s[n]; n++)
		barrier();
	return n;
}

// A function calls it that finds memory of its stack overwritten (-fstack-protector). The fault ends the handler.
__weak __attribute__((noreturn)) void __stack_chk_fail(void) { __builtin_trap(); }

static inline size_t strnlen(const char *s, size_t most)
{
	size_t n = 0;
	while (n < most && s[n])
		n++;
	return n;
}

static inline int strncmp(const char *a, const char *b, size_t n)
{
	for (; n; n--, a++, b++) {
		if (*a != *b)
			return (u8)*a < (u8)*b ? -1 : 1;
		if (!*a)
			break;
	}
	return 0;
}

static inline int strcmp(const char *a, const char *b) { return strncmp(a, b, ~0UL); }

static inline char *strchr(const char *s, int c)
{
	for (; *s != (char)c; s++)
		if (!*s)
			return NULL;
	return (char *)s;
}

static inline char *strrchr(const char *s, int c)
{
	const char *last = NULL;
	do
		if (*s == (char)c)
			last = s;
	while (*s++);
	return (char *)last;
}

static inline char *strnstr(const char *s, const char *part, size_t most)
{
	size_t n = strlen(part);
	for (; most >= n; most--, s++) {
		if (!strncmp(s, part, n))
			return (char *)s;
		if (!*s)
			break;
	}
	return NULL;
}

static inline char *strstr(const char *s, const char *part) { return strnstr(s, part, ~0UL >> 1); }

static inline ssize_t strscpy_n(char *to, const char *from, size_t n)
{
	size_t len;
	if (!n)
		return -E2BIG;
	len = strnlen(from, n);
	if (len == n) {
		memcpy(to, from, n - 1);
		to[n - 1] = 0;
		return -E2BIG;
	}
	memcpy(to, from, len + 1);
	return len;
}
#define __kp_strscpy2(to, from) strscpy_n(to, from, sizeof(to))
#define __kp_strscpy3(to, from, n) strscpy_n(to, from, n)
#define __kp_strscpy(a, b, c, name, ...) name
#define strscpy(...) __kp_strscpy(__VA_ARGS__, __kp_strscpy3, __kp_strscpy2, )(__VA_ARGS__)

static inline size_t strlcpy(char *to, const char *from, size_t n)
{
	strscpy_n(to, from, n);
	return strlen(from);
}

static inline char *strcpy(char *to, const char *from) { return memcpy(to, from, strlen(from) + 1); }

static inline char *strncpy(char *to, const char *from, size_t n)
{
	size_t len = strnlen(from, n);
	memcpy(to, from, len);
	memset(to + len, 0, n - len);
	return to;
}

static inline char *strcat(char *to, const char *from)
{
	strcpy(to + strlen(to), from);
	return to;
}

static inline char *strncat(char *to, const char *from, size_t n)
{
	size_t at = strlen(to), len = strnlen(from, n);
	memcpy(to + at, from, len);
	to[at + len] = 0;
	return to;
}

static inline void *memchr(const void *s, int c, size_t n)
{
	const u8 *p = s;
	for (; n; n--, p++)
		if (*p == (u8)c)
			return (void *)p;
	return NULL;
}

static inline char *strim(char *s)
{
	size_t n = strlen(s);
	while (n && (s[n - 1] == ' ' || (s[n - 1] >= '\t' && s[n - 1] <= '\r')))
		s[--n] = 0;
	while (*s == ' ' || (*s >= '\t' && *s <= '\r'))
		s++;
	return s;
}

static inline bool str_has_prefix(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }
static inline bool sysfs_streq(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b);
	if (n && a[n - 1] == '\n')
		n--;
	if (m && b[m - 1] == '\n')
		m--;
	return n == m && !memcmp(a, b, n);
}

#endif
