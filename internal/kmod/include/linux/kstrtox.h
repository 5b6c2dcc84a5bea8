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
	if (s[0] == '0' && (s[1] | 0x20) == 'x' && (base == 0 || base == 16) && __kp_digit(s[2]) < 16) {
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
	unsigned long long v = 0;
	bool range = false, any = false;
	if (*s == '+')
		s++;
	if (s[0] == '0' && (s[1] | 0x20) == 'x' && (base == 0 || base == 16)) {
		base = 16;
		s += 2;
	} else if (base == 0) {
		base = s[0] == '0' && s[1] ? 8 : 10;
	}
	for (; __kp_digit(*s) < base; s++, any = true)
		range |= __builtin_mul_overflow(v, (unsigned long long)base, &v) | __builtin_add_overflow(v, (unsigned long long)__kp_digit(*s), &v);
	if (*s == '\n')
		s++;
	if (!any || *s)
		return -EINVAL;
	if (range)
		return -ERANGE;
	*to = v;
	return 0;
}

static inline int kstrtoll(const char *s, unsigned int base, long long *to)
{
	unsigned long long v;
	bool negative = *s == '-';
	int bad;
	if (negative && s[1] == '+')
		return -EINVAL;
	bad = kstrtoull(s + negative, base, &v);
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
__KP_KSTRTO(kstrtou32, u32, kstrtoull, unsigned long long)
__KP_KSTRTO(kstrtou64, u64, kstrtoull, unsigned long long)
__KP_KSTRTO(kstrtos64, s64, kstrtoll, long long)
__KP_KSTRTO(kstrtol, long, kstrtoll, long long)
__KP_KSTRTO(kstrtoint, int, kstrtoll, long long)

static inline int kstrtobool(const char *s, bool *to)
{
	switch (s ? s[0] | 0x20 : 0) {
	case 'y': case 't': case '1' | 0x20:
		*to = true;
		return 0;
	case 'n': case 'f': case '0' | 0x20:
		*to = false;
		return 0;
	case 'o':
		if ((s[1] | 0x20) != 'n' && (s[1] | 0x20) != 'f')
			break;
		*to = (s[1] | 0x20) == 'n';
		return 0;
	}
	return -EINVAL;
}

#endif
