// The log. A line is written as a record of its format and its arguments; who reads the log formats it.
#ifndef _LINUX_PRINTK_H
#define _LINUX_PRINTK_H

#include <linux/init.h>
#include <linux/kp_runtime.h>
#include <linux/stdarg.h>

#define KERN_SOH "\001"
#define KERN_EMERG KERN_SOH "0"
#define KERN_ALERT KERN_SOH "1"
#define KERN_CRIT KERN_SOH "2"
#define KERN_ERR KERN_SOH "3"
#define KERN_WARNING KERN_SOH "4"
#define KERN_NOTICE KERN_SOH "5"
#define KERN_INFO KERN_SOH "6"
#define KERN_DEBUG KERN_SOH "7"
#define KERN_DEFAULT ""
#define KERN_CONT KERN_SOH "c"

// A format, and how its arguments are recorded: two bits for each, the first argument's lowest. The loader fills in arguments, since it knows the
// text; where it does not, the text is looked at each time.
struct __kp_format {
	const char *text;
	unsigned long arguments;
};

enum {
	__KP_ARG_NONE,
	__KP_ARG_WORD,
	__KP_ARG_STRING,
	__KP_ARG_BOUNDED, // a string whose length is bounded by the word before
	__KP_ARGS_MOST = 31,
	__KP_LINE_WORDS = 126,
};

#define __KP_ARGS_UNKNOWN (~0UL)

// A format that is looked at: what is found, and not told yet.
struct __kp_scan {
	const char *s;
	unsigned int kinds;  // two bits for each
	unsigned long bound; // of the string that is told next, with its end; 0: none
};

// __kp_next gives the kind of the next argument.
__weak unsigned int __kp_next(struct __kp_scan *c)
{
	const char *s = c->s;
	unsigned int kind = c->kinds & 3, n = 0;
	if (kind) {
		c->kinds >>= 2;
		return kind;
	}
	c->bound = 0;
	for (;;) {
		kind = __KP_ARG_WORD;
		while (*s && *s++ != '%')
			;
		while (*s == '-' || *s == '+' || *s == ' ' || *s == '#' || *s == '0')
			s++;
		if (*s == '*') {
			n = 1;
			s++;
		}
		while (*s >= '0' && *s <= '9')
			s++;
		if (*s == '.') {
			c->bound = 1;
			if (*++s == '*') {
				n++;
				s++;
				kind = __KP_ARG_BOUNDED;
			}
			for (; *s >= '0' && *s <= '9'; s++)
				c->bound = 10 * (c->bound - 1) + *s - '0' + 1;
		}
		while (*s == 'h' || *s == 'l' || *s == 'L' || *s == 'z' || *s == 't' || *s == 'j' || *s == 'q')
			s++;
		if (*s && *s != '%')
			break;
		if (!*s || n) { // it ends in a verb
			kind = __KP_ARG_NONE;
			break;
		}
		s++;
		c->bound = 0;
	}
	if (kind != __KP_ARG_NONE && *s++ != 's') {
		kind = __KP_ARG_WORD;
		c->bound = 0;
	} else if (kind == __KP_ARG_WORD) {
		kind = __KP_ARG_STRING;
	}
	if (kind == __KP_ARG_BOUNDED)
		c->bound = 0;
	c->s = s;
	c->kinds = kind << 2 * n | (n > 0) * __KP_ARG_WORD | (n > 1) * __KP_ARG_WORD << 2;
	kind = c->kinds & 3;
	c->kinds >>= 2;
	return kind;
}

// __kp_arguments looks at a format: __KP_ARGS_UNKNOWN if it bounds a string itself.
__weak unsigned long __kp_arguments(const char *s)
{
	struct __kp_scan c = {.s = s};
	unsigned long all = 0;
	unsigned int kind;
	int n;
	for (n = 0; n < __KP_ARGS_MOST && (kind = __kp_next(&c)); n++) {
		if (kind == __KP_ARG_STRING && c.bound)
			return __KP_ARGS_UNKNOWN;
		all |= (unsigned long)kind << 2 * n;
	}
	return all;
}

// A record has the format's address, 0: its text follows as the first string; then each argument: a word, or a string. A string is its length in bytes,
// all ones where it could not be read, and as many words as they take.
__weak int __kp_log(const struct __kp_format *f, const char *text, va_list args)
{
	unsigned long words[2 + __KP_LINE_WORDS], bound = 0, kinds;
	unsigned int n = 1, kind;
	struct __kp_scan scan = {.s = text};
	const char *s = 0;

	kinds = f ? f->arguments : __KP_ARGS_UNKNOWN;
	words[0] = (unsigned long)f;
	if (kinds == __KP_ARGS_UNKNOWN) {
		words[0] = 0;
		s = text;
	}
	for (;;) {
		if (s) {
			unsigned long most = (__KP_LINE_WORDS - n) * sizeof words[0];
			long len;
			if (bound && bound < most)
				most = bound;
			len = __kp_copy_string((char *)&words[n + 1], s, most);
			words[n] = len;
			n += 1 + (len > 0 ? (len + 7) / 8 : 0);
			s = 0;
			bound = 0;
		}
		if (n + 2 > __KP_LINE_WORDS)
			break;
		if (kinds == __KP_ARGS_UNKNOWN) {
			kind = __kp_next(&scan);
			bound = scan.bound;
		} else {
			kind = kinds & 3;
			kinds >>= 2;
		}
		if (!kind)
			break;
		if (kind == __KP_ARG_WORD) {
			words[n++] = va_arg(args, unsigned long);
		} else {
			if (kind == __KP_ARG_BOUNDED)
				bound = (unsigned int)words[n - 1] + 1;
			s = va_arg(args, const char *);
			if (!s)
				s = "(null)";
		}
	}
	__kp_record(words, n);
	return 0;
}

__printf(1, 0) __weak int vprintk(const char *text, va_list args) { return __kp_log(0, text, args); }

__printf(2, 3) __weak int __kp_printk(const struct __kp_format *f, const char *text, ...)
{
	va_list args;
	va_start(args, text);
	__kp_log(f, text, args);
	va_end(args);
	return 0;
}

// A pr_fmt may bring arguments with it: they are told apart by the second macro.
#define printk(line, ...) __kp_printk_of(line, ##__VA_ARGS__)
#define __kp_printk_of(line, ...)                                                                         \
	({                                                                                             \
		static struct __kp_format __kp_f __section(".kp_formats") __used = {                   \
			.text = __builtin_constant_p(line) ? (line) : 0,                               \
			.arguments = __KP_ARGS_UNKNOWN,                                                \
		};                                                                                     \
		__kp_printk(&__kp_f, line, ##__VA_ARGS__);                                             \
	})
#define _printk printk
#define printk_deferred printk

#ifndef pr_fmt
#define pr_fmt(text) text
#endif
#define pr_emerg(text, ...) printk(KERN_EMERG pr_fmt(text), ##__VA_ARGS__)
#define pr_alert(text, ...) printk(KERN_ALERT pr_fmt(text), ##__VA_ARGS__)
#define pr_crit(text, ...) printk(KERN_CRIT pr_fmt(text), ##__VA_ARGS__)
#define pr_err(text, ...) printk(KERN_ERR pr_fmt(text), ##__VA_ARGS__)
#define pr_warn(text, ...) printk(KERN_WARNING pr_fmt(text), ##__VA_ARGS__)
#define pr_warning pr_warn
#define pr_notice(text, ...) printk(KERN_NOTICE pr_fmt(text), ##__VA_ARGS__)
#define pr_info(text, ...) printk(KERN_INFO pr_fmt(text), ##__VA_ARGS__)
#define pr_cont(text, ...) printk(KERN_CONT text, ##__VA_ARGS__)
#define no_printk(text, ...)                                \
	({                                                  \
		if (0)                                      \
			printk(text, ##__VA_ARGS__);        \
		0;                                          \
	})
#ifdef DEBUG
#define pr_debug(text, ...) printk(KERN_DEBUG pr_fmt(text), ##__VA_ARGS__)
#else
#define pr_debug(text, ...) no_printk(KERN_DEBUG pr_fmt(text), ##__VA_ARGS__)
#endif
#define pr_devel pr_debug

#define printk_once(text, ...)                                                                         \
	({                                                                                             \
		static int __kp_done;                                                                  \
		if (!__atomic_exchange_n(&__kp_done, 1, __ATOMIC_RELAXED))                             \
			printk(text, ##__VA_ARGS__);                                                   \
	})
#define pr_err_once(text, ...) printk_once(KERN_ERR pr_fmt(text), ##__VA_ARGS__)
#define pr_warn_once(text, ...) printk_once(KERN_WARNING pr_fmt(text), ##__VA_ARGS__)
#define pr_info_once(text, ...) printk_once(KERN_INFO pr_fmt(text), ##__VA_ARGS__)

// Ten lines in five seconds, as the kernel's.
#define printk_ratelimited(text, ...)                                                                  \
	({                                                                                             \
		static unsigned long long __kp_since;                                                  \
		static unsigned int __kp_lines;                                                        \
		unsigned long long __kp_now = __kp_nanoseconds();                                      \
		if (__kp_now - __kp_since > 5000000000ull) {                                           \
			__kp_since = __kp_now;                                                         \
			__kp_lines = 0;                                                                \
		}                                                                                      \
		if (__atomic_fetch_add(&__kp_lines, 1, __ATOMIC_RELAXED) < 10)                         \
			printk(text, ##__VA_ARGS__);                                                   \
	})
#define pr_err_ratelimited(text, ...) printk_ratelimited(KERN_ERR pr_fmt(text), ##__VA_ARGS__)
#define pr_warn_ratelimited(text, ...) printk_ratelimited(KERN_WARNING pr_fmt(text), ##__VA_ARGS__)
#define pr_info_ratelimited(text, ...) printk_ratelimited(KERN_INFO pr_fmt(text), ##__VA_ARGS__)

// dump_stack has the callers of the probed function written to the log.
void dump_stack(void);

#endif
