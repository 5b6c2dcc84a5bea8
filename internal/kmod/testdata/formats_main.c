// The side of libc: see formats.h. What is told on the standard output is a letter, a length of 8 bytes, and so many bytes.
#include <stdio.h>
#include <string.h>

void kernel_side(void);

void emit(char what, const void *of, unsigned long bytes)
{
	putchar(what);
	fwrite(&bytes, sizeof bytes, 1, stdout);
	fwrite(of, 1, bytes, stdout);
}

void __kp_record(const unsigned long *words, unsigned long n) { emit('r', words, n * sizeof *words); }

long __kp_copy_string(char *to, const char *from, unsigned long n)
{
	if ((unsigned long)from < 4096)
		return -14;
	unsigned long len = strnlen(from, n - 1);
	memcpy(to, from, len);
	to[len] = 0;
	return len;
}

static char long_text[3000];

int main(void)
{
	char text[512];
	memset(long_text, 'x', sizeof long_text);
	kernel_side();
#define F(...)                                                           \
	emit('p', text, snprintf(text, sizeof text, __VA_ARGS__));
#pragma GCC diagnostic ignored "-Wformat"
#include "formats.h"
	return 0;
}
