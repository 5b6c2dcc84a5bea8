// Three functions, each on a page of its own, one after another.
//
//	apart    commands: go N, quit
#include "prog.h"

#define APART(name, n) \
	NOINLINE __attribute__((aligned(4096))) uint64_t name(uint64_t a) { return a * n + n; }
APART(first, 3)
APART(middle, 5)
APART(last, 7)

static uint64_t calls, bad;

static void report(void) {
	say("{\"first\":%" PRIu64 ",\"middle\":%" PRIu64 ",\"last\":%" PRIu64 ",\"bad\":%" PRIu64 "}", calls, calls, calls, bad);
}

__attribute__((aligned(4096))) int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++, calls++)
			bad += first(i) + middle(i) + last(i) != 15 * i + 15;
		report();
	}
	report();
	return 0;
}
