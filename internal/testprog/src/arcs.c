// Is compiled with -pg: its calls are counted by the C library's profiler, which asks for the
// return addresses of the functions that it counts. It ends by itself, and leaves gmon.out.
// build: -pg -O2 -no-pie -fno-pie
#include "prog.h"

static uint64_t sum;
NOINLINE uint64_t leaf(uint64_t v) {
	sum += v;
	return v * 3;
}
NOINLINE uint64_t tail(uint64_t v) {
	sum ^= v;
	return leaf(v + 1);
}
NOINLINE uint64_t plain(uint64_t v) { return tail(v) + leaf(v) + 1; }

int main(void) {
	uint64_t v = 0;
	for (uint64_t i = 0; i < 1000; i++)
		v += plain(i) + tail(i);
	say("%" PRIu64 " %" PRIu64, v, sum);
	return 0;
}
