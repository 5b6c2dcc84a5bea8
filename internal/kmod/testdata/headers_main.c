// What a module has of kprobe, for headers_module.c, as a program of libc.
#include <stdio.h>
#include <string.h>

int headers_check(void);
char __kp_heap[1 << 20] __attribute__((aligned(16)));
__asm__(".globl __kp_heap_end\n.set __kp_heap_end, __kp_heap + 0x100000\n");

unsigned long __kp_copy(void *to, const void *from, unsigned long n)
{
	memcpy(to, from, n);
	return 0;
}

long __kp_copy_string(char *to, const char *from, unsigned long n)
{
	strncpy(to, from, n - 1);
	to[n - 1] = 0;
	return (long)strlen(to);
}

int main(void)
{
	printf("%d\n", headers_check());
	return 0;
}
