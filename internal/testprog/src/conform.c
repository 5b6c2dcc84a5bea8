// The functions that internal/conformance probes, and one that calls itself.
// build: -fno-omit-frame-pointer -fno-optimize-sibling-calls
//
//	conform    commands: target V, target2 V, recursed V, inner V, outer V, deep V, sum V, count, quit
//
// A command calls the function of its name and answers what it returned as "value": V/3,
// V/3+1, V/3, of inner and outer, which calls inner, their own return addresses, and of deep,
// which is V+1 calls in each other, V, of sum, which calls sum6, 21.
#include "prog.h"

static uint64_t calls, value;

NOINLINE uint64_t target(uint64_t v) { return v / 3; }
NOINLINE uint64_t target2(uint64_t v) { return v / 3 + 1; }
NOINLINE uint64_t recursed(uint64_t v) { return v / 3; }
NOINLINE uint64_t inner(uint64_t v) {
	(void)v;
	return (uint64_t)__builtin_return_address(0);
}

static uint64_t (*volatile call_inner)(uint64_t) = inner;

NOINLINE uint64_t outer(uint64_t v) {
	call_inner(v);
	return (uint64_t)__builtin_return_address(0);
}

static uint64_t (*volatile call_deep)(uint64_t);

NOINLINE uint64_t deep(uint64_t v) { return v ? call_deep(v - 1) + 1 : 0; }

NOINLINE uint64_t sum6(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) { return a + b + c + d + e + f; }

static uint64_t (*volatile call_sum6)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) = sum6;

static uint64_t sum(uint64_t v) {
	(void)v;
	return call_sum6(1, 2, 3, 4, 5, 6);
}

static const struct {
	const char *name;
	uint64_t (*volatile call)(uint64_t);
} functions[] = {{"target", target}, {"target2", target2}, {"recursed", recursed}, {"inner", inner}, {"outer", outer}, {"deep", deep}, {"sum", sum}};

// run does a command; 0 if it is unknown.
static int run(const char *line) {
	for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)
		if (is(line, functions[i].name)) {
			value = functions[i].call(number(line, functions[i].name, 0));
			calls++;
			return 1;
		}
	return is(line, "count") || is(line, "quit");
}

int main(void) {
	char line[256];
	call_deep = deep;
	say("ready");
	while (command(line)) {
		if (run(line))
			say("{\"calls\":%" PRIu64 ",\"value\":%" PRIu64 "}", calls, value);
		else
			say("{\"error\":\"unknown command\"}");
		if (is(line, "quit"))
			return 0;
	}
	return 0;
}
