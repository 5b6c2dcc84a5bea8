// gcc -O2 keeps values in registers that the ABI lets leaf destroy, because it knows that
// leaf does not (-fipa-ra): run has them live across the call.

#include <stdio.h>

static long a[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };

__attribute__((noinline)) static long leaf(long x)
{
	return x * 5 + 3;
}

__attribute__((noinline)) long run(long n)
{
	long b = a[0], c = a[1], d = a[2], e = a[3], f = a[4], g = a[5], s = 0;
	__asm__ volatile("" : "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g));
	while (n--)
		s += leaf(n);
	__asm__ volatile("" : "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g));
	return s + b * 3 + c * 5 + d * 7 + e * 11 + f * 13 + g * 17;
}

int main(void)
{
	printf("%ld\n", run(3));
	return 0;
}
