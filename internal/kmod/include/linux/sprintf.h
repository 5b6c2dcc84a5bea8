// Text in memory. Of what printk takes behind %p nothing is known here: a pointer is 16 digits.
#ifndef _LINUX_SPRINTF_H
#define _LINUX_SPRINTF_H

#include <linux/stdarg.h>
#include <linux/string.h>

struct __kp_text {
	char *at, *end;
	size_t n;
};

static inline void __kp_put(struct __kp_text *t, char c)
{
	if (t->at < t->end)
		*t->at++ = c;
	t->n++;
}

struct __kp_spec {
	bool left, plus, blank, alternate, zero;
	int width, precision; // precision -1: none
};

static inline void __kp_pad(struct __kp_text *t, char c, int n)
{
	while (n-- > 0)
		__kp_put(t, c);
}

static inline void __kp_number(struct __kp_text *t, const struct __kp_spec *s, unsigned long v, unsigned int base, bool upper, char sign)
{
	char digits[32];
	int n = 0, zeros, len;
	do {
		unsigned int d = v % base;
		digits[n++] = d < 10 ? '0' + d : (upper ? 'A' : 'a') + d - 10;
		v /= base;
	} while (v);
	zeros = s->precision > n ? s->precision - n : 0;
	if (s->alternate && base == 8 && !zeros && digits[n - 1] != '0')
		zeros = 1;
	len = n + zeros + (sign ? 1 : 0) + (s->alternate && base == 16 ? 2 : 0);
	if (s->zero && !s->left && s->precision < 0 && s->width > len) {
		zeros += s->width - len;
		len = s->width;
	}
	if (!s->left)
		__kp_pad(t, ' ', s->width - len);
	if (sign)
		__kp_put(t, sign);
	if (s->alternate && base == 16) {
		__kp_put(t, '0');
		__kp_put(t, upper ? 'X' : 'x');
	}
	__kp_pad(t, '0', zeros);
	while (n)
		__kp_put(t, digits[--n]);
	if (s->left)
		__kp_pad(t, ' ', s->width - len);
}

__weak int vsnprintf(char *to, size_t size, const char *f, va_list args)
{
	struct __kp_text t = {to, size ? to + size - 1 : to, 0};
	for (; *f; f++) {
		struct __kp_spec s = {.precision = -1};
		int bits = 32;
		unsigned long v;
		if (*f != '%') {
			__kp_put(&t, *f);
			continue;
		}
		for (f++;; f++) {
			if (*f == '-')
				s.left = true;
			else if (*f == '+')
				s.plus = true;
			else if (*f == ' ')
				s.blank = true;
			else if (*f == '#')
				s.alternate = true;
			else if (*f == '0')
				s.zero = true;
			else
				break;
		}
		if (*f == '*') {
			s.width = va_arg(args, int);
			if (s.width < 0) {
				s.left = true;
				s.width = -s.width;
			}
			f++;
		}
		while (*f >= '0' && *f <= '9')
			s.width = 10 * s.width + *f++ - '0';
		if (*f == '.') {
			s.precision = 0;
			if (*++f == '*') {
				s.precision = va_arg(args, int);
				f++;
			}
			while (*f >= '0' && *f <= '9')
				s.precision = 10 * s.precision + *f++ - '0';
		}
		for (;; f++) {
			if (*f == 'h')
				bits = bits == 16 ? 8 : 16;
			else if (*f == 'l' || *f == 'L' || *f == 'z' || *f == 't' || *f == 'j' || *f == 'q')
				bits = 64;
			else
				break;
		}
		switch (*f) {
		case 0:
			f--;
			continue;
		case '%':
			__kp_put(&t, '%');
			continue;
		case 'c':
			if (!s.left)
				__kp_pad(&t, ' ', s.width - 1);
			__kp_put(&t, (char)va_arg(args, int));
			if (s.left)
				__kp_pad(&t, ' ', s.width - 1);
			continue;
		case 's': {
			const char *p = va_arg(args, const char *);
			int n, i;
			if (!p)
				p = "(null)";
			n = (int)strnlen(p, s.precision < 0 ? 1 << 30 : (size_t)s.precision);
			if (!s.left)
				__kp_pad(&t, ' ', s.width - n);
			for (i = 0; i < n; i++)
				__kp_put(&t, p[i]);
			if (s.left)
				__kp_pad(&t, ' ', s.width - n);
			continue;
		}
		case 'p':
			while ((f[1] >= '0' && f[1] <= '9') || ((f[1] | 0x20) >= 'a' && (f[1] | 0x20) <= 'z'))
				f++; // what the kernel would do with it is not known here
			v = va_arg(args, unsigned long);
			s.zero = true;
			s.width = 16;
			__kp_number(&t, &s, v, 16, false, 0);
			continue;
		}
		v = va_arg(args, unsigned long);
		if (*f == 'd' || *f == 'i') {
			long d = bits == 64 ? (long)v : bits == 32 ? (int)v : bits == 16 ? (short)v : (signed char)v;
			__kp_number(&t, &s, d < 0 ? -(unsigned long)d : (unsigned long)d, 10, false, d < 0 ? '-' : s.plus ? '+' : s.blank ? ' ' : 0);
			continue;
		}
		if (bits < 64)
			v &= (1UL << bits) - 1;
		__kp_number(&t, &s, v, *f == 'u' ? 10 : *f == 'o' ? 8 : 16, *f == 'X', 0);
	}
	if (size)
		*t.at = 0;
	return (int)t.n;
}

static inline int vscnprintf(char *to, size_t size, const char *f, va_list args)
{
	int n = vsnprintf(to, size, f, args);
	return (size_t)n < size ? n : size ? (int)size - 1 : 0;
}

__printf(3, 4) static inline int snprintf(char *to, size_t size, const char *f, ...);
__printf(3, 4) static inline int scnprintf(char *to, size_t size, const char *f, ...);
__printf(2, 3) static inline int sprintf(char *to, const char *f, ...);

#define __KP_PRINTF(call)                \
	int n;                           \
	va_list args;                    \
	va_start(args, f);               \
	n = call;                        \
	va_end(args);                    \
	return n;

static inline int snprintf(char *to, size_t size, const char *f, ...) { __KP_PRINTF(vsnprintf(to, size, f, args)) }
static inline int scnprintf(char *to, size_t size, const char *f, ...) { __KP_PRINTF(vscnprintf(to, size, f, args)) }
static inline int sprintf(char *to, const char *f, ...) { __KP_PRINTF(vsnprintf(to, 1 << 30, f, args)) }

#endif
