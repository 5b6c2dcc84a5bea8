// Calls at a rate.
//
//	rate   commands: rate N, go N, quit
//
// "go" makes N calls of rate_call, so many a second as "rate" has said, a million by default; it never makes one early, and catches up
// where it was late. The answer has all calls until now, and the nanoseconds that these took.
#include "prog.h"

static uint64_t calls, sum;

NOINLINE uint64_t rate_call(uint64_t n) { return n * 3; }

int main(void) {
	enum { batch = 64 };
	char line[256];
	uint64_t rate = 1000000, took = 0;
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "rate"))
			rate = number(line, "rate", rate);
		uint64_t n = is(line, "go") ? number(line, "go", 1) : 0, begin = now_ns();
		for (uint64_t i = 0; i < n; i++) {
			if (i % batch == 0)
				while ((now_ns() - begin) < i * 1000000000 / rate)
					;
			sum += rate_call(++calls);
		}
		took = now_ns() - begin;
		say("{\"calls\":%" PRIu64 ",\"ns\":%" PRIu64 ",\"bad\":%d}", calls, took, sum != 3 * (calls * (calls + 1) / 2));
	}
	say("{}");
	return 0;
}
