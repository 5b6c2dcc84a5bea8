// A shared object for dl with the same function at another offset: lib_work returns a*3+b.
// build: -shared -fPIC -Wl,-soname,libdltwo.so
#include <stdint.h>

uint64_t lib_calls;

__attribute__((noinline)) uint64_t lib_padding(uint64_t a) { return a * a * a + 17 * a + (a >> 3); }

__attribute__((noinline)) uint64_t lib_work(uint64_t a, uint64_t b) {
	__atomic_add_fetch(&lib_calls, 1, __ATOMIC_RELAXED);
	return a * 3 + b;
}

// lib_back keeps more on its stack than the frame pointer would need.
__attribute__((noinline)) uint64_t lib_back(uint64_t (*f)(uint64_t), uint64_t a) {
	volatile uint64_t room[13] = {a};
	return f(a * 3) + (room[0] - a);
}
