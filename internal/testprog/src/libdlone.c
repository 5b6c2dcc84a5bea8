// A shared object for dl: lib_work returns a*2+b.
// build: -shared -fPIC -Wl,-soname,libdlone.so
#include <stdint.h>

uint64_t lib_calls;

__attribute__((noinline)) uint64_t lib_work(uint64_t a, uint64_t b) {
	__atomic_add_fetch(&lib_calls, 1, __ATOMIC_RELAXED);
	return a * 2 + b;
}

// lib_back keeps more on its stack than the frame pointer would need.
__attribute__((noinline)) uint64_t lib_back(uint64_t (*f)(uint64_t), uint64_t a) {
	volatile uint64_t room[3] = {a};
	return f(a * 2) + (room[0] - a);
}
