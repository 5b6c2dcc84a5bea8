#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNC(n)                                                                                       \
	static int cmp##n(const void *a, const void *b) { return *(const int *)a - *(const int *)b + n; } \
	int func##n(int *v, int k, char *s)                                                               \
	{                                                                                                 \
		int i, sum = n;                                                                               \
		double d = n;                                                                                 \
		qsort(v, k, sizeof *v, cmp##n);                                                               \
		for (i = 0; i < k; i++) {                                                                     \
			switch (v[i] % 9) {                                                                       \
			case 0: sum += v[i]; break;                                                               \
			case 1: sum ^= v[i] << 3; break;                                                          \
			case 2: d *= 1.5; break;                                                                  \
			case 3: sum -= (int)strlen(s); break;                                                     \
			case 4: s[i % 7] = (char)sum; break;                                                      \
			case 5: sum = sum * 31 + n; break;                                                        \
			case 6: return sum;                                                                       \
			default: d += sum / (v[i] | 1);                                                           \
			}                                                                                         \
		}                                                                                             \
		return sum + (int)d + printf("%d %s\n", sum, s);                                              \
	}
#define TEN(n) FUNC(n##0) FUNC(n##1) FUNC(n##2) FUNC(n##3) FUNC(n##4) FUNC(n##5) FUNC(n##6) FUNC(n##7) FUNC(n##8) FUNC(n##9)
#define HUNDRED(n) TEN(n##0) TEN(n##1) TEN(n##2) TEN(n##3) TEN(n##4) TEN(n##5) TEN(n##6) TEN(n##7) TEN(n##8) TEN(n##9)

HUNDRED(1)
HUNDRED(2)
HUNDRED(3)
#if SIZE > 1
HUNDRED(4)
HUNDRED(5)
HUNDRED(6)
#endif
