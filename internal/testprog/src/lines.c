// Statements that are counted: lines are places for probes.
//
//	lines   commands: go N, count, quit
//
// build: -O2
//
// "go" makes N rounds. A line with a comment "at NAME" is executed as many times as the count NAME tells.
#include "prog.h"

static volatile struct {
	uint64_t inlined, plain, loop, odd, both;
} n;

static inline __attribute__((always_inline)) uint64_t inlined(uint64_t v) {
	n.inlined++; // at inlined
	return v * 3;
}

NOINLINE uint64_t once(uint64_t v) {
	uint64_t w = inlined(v);
	return w ^ 5;
}

NOINLINE uint64_t many(uint64_t v) {
	uint64_t sum = 0;
	for (uint64_t i = 0; i < v % 5; i++) {
		n.loop++; // at loop
		sum += inlined(i);
	}
	if (v & 1) {
		n.odd++; // at odd
		sum ^= inlined(sum);
	}
	n.plain++; // at plain
	return sum;
}

// both is inlined in main, and called there by a pointer.
uint64_t both(uint64_t v) {
	n.both++; // at both
	return v ^ 1;
}

static uint64_t (*volatile called)(uint64_t) = both;

static void report(void) {
	say("{\"inlined\":%" PRIu64 ",\"plain\":%" PRIu64 ",\"loop\":%" PRIu64 ",\"odd\":%" PRIu64 ",\"both\":%" PRIu64 "}", n.inlined, n.plain, n.loop, n.odd, n.both);
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				if ((once(i) == many(i) && i > 1000) || both(i) == called(i) + 1)
					die("a wrong result");
		report();
	}
	report();
	return 0;
}
