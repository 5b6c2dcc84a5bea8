// Numbers in text.
#ifndef _LINUX_KSTRTOX_H
#define _LINUX_KSTRTOX_H

#include <linux/errno.h>
#include <linux/types.h>

static inline unsigned int __kp_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

static inline unsigned long long simple_strtoull(const char *s, char **end, unsigned int base)
{
	unsigned long long v = 0;
	if (s[0] == '0' && (s[1] | 0x20) == 'x' && (base == 0 || base == 16)) {
		base = 16;
		s += 2;
	} else if (base == 0) {
		base = s[0] == '0' ? 8 : 10;
	}
	for (; __kp_digit(*s) < base; s++)
		v = v * base + __kp_digit(*s);
	if (end)
		*end = (char *)s;
	return v;
}

static inline unsigned long simple_strtoul(const char *s, char **end, unsigned int base) { return simple_strtoull(s, end, base); }

static inline long simple_strtol(const char *s, char **end, unsigned int base)
{
	return *s == '-' ? -(long)simple_strtoull(s + 1, end, base) : (long)simple_strtoull(s, end, base);
}

static inline int kstrtoull(const char *s, unsigned int base, unsigned long long *to)
{
	char *end;
	unsigned long long v;
	if (*s == '+')
		s++;
	v = simple_strtoull(s, &end, base);
	if (*end == '\n')
		end++;
	if (end == s || *end)
		return -EINVAL;
	*to = v;
	return 0;
}

static inline int kstrtoll(const char *s, unsigned int base, long long *to)
{
	unsigned long long v;
	bool negative = *s == '-';
	int bad = kstrtoull(s + negative, base, &v);
	if (bad)
		return bad;
	if (v > (~0ULL >> 1) + negative)
		return -ERANGE;
	*to = negative ? -(long long)v : (long long)v;
	return 0;
}

#define __KP_KSTRTO(name, type, of, wide)                                        \
	static inline int name(const char *s, unsigned int base, type *to)       \
	{                                                                        \
		wide v;                                                          \
		int bad = of(s, base, &v);                                       \
		if (bad)                                                         \
			return bad;                                              \
		if ((wide)(type)v != v)                                          \
			return -ERANGE;                                          \
		*to = (type)v;                                                   \
		return 0;                                                        \
	}

__KP_KSTRTO(kstrtoul, unsigned long, kstrtoull, unsigned long long)
__KP_KSTRTO(kstrtouint, unsigned int, kstrtoull, unsigned long long)
__KP_KSTRTO(kstrtou16, u16, kstrtoull, unsigned long long)
__KP_KSTRTO(kstrtou8, u8, kstrtoull, unsigned long long)
__KP_KSTRTO(kstrtol, long, kstrtoll, long long)
__KP_KSTRTO(kstrtoint, int, kstrtoll, long long)

#endif
