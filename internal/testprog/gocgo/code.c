#include "_cgo_export.h"

__attribute__((noinline, noclone)) uint64_t c_leaf(uint64_t v, uint64_t k) {
	volatile uint64_t a[15];
	uint64_t sum = v + k;
	for (int i = 0; i < 15; i++)
		a[i] = v + i + 1;
	for (int i = 0; i < 15; i++)
		sum += a[i];
	return sum;
}

uint64_t c_sum(uint64_t v, uint64_t n) {
	uint64_t sum = 0;
	for (uint64_t k = 0; k < n; k++)
		sum += c_leaf(v, k);
	return sum;
}

uint64_t c_back(uint64_t v) { return Back(v) + 1; }
