// Calls that know how long they take.
//
//	timed [THREADS]   commands: go N, quit
//
// "go" makes N calls in each of THREADS threads, 4 of them by default: half of timed_plain, half of timed_jump, which ends in a jump
// to another function. Some sleep, most spin. The answer has for each call, by its number, the nanoseconds of CLOCK_MONOTONIC that
// have passed inside of it ("inner"), and around it ("outer").
#include "prog.h"

static uint64_t *inner, *outer;
static int threads = 4;
static uint64_t calls;

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void pass(uint64_t id) {
	if (id % 63 == 5) {
		struct timespec t = {0, (long)(id % 7) * 1000000};
		nanosleep(&t, NULL);
	}
	for (uint64_t end = now() + (1ull << (id % 18)); now() < end;)
		;
}

NOINLINE uint64_t timed_plain(uint64_t id) {
	uint64_t t = now();
	pass(id);
	inner[id] = now() - t;
	return id;
}

NOINLINE uint64_t timed_rest(uint64_t id, uint64_t t) {
	pass(id);
	inner[id] = now() - t;
	return id;
}

NOINLINE uint64_t timed_jump(uint64_t id) { return timed_rest(id, now()); }

static void *run(void *arg) {
	for (uint64_t i = 0; i < calls; i++) {
		uint64_t id = (uint64_t)arg * calls + i, t = now();
		if ((id & 1 ? timed_jump(id) : timed_plain(id)) != id)
			die("a wrong result");
		outer[id] = now() - t;
	}
	return NULL;
}

static void list(const char *name, const uint64_t *v, uint64_t n) {
	printf("\"%s\":[", name);
	for (uint64_t i = 0; i < n; i++)
		printf("%s%" PRIu64, i ? "," : "", v[i]);
	printf("]");
}

int main(int argc, char **argv) {
	char line[256];
	if (argc > 1)
		threads = atoi(argv[1]);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		pthread_t t[64];
		calls = number(line, "go", 1);
		uint64_t all = calls * (uint64_t)threads;
		inner = calloc(all, sizeof *inner);
		outer = calloc(all, sizeof *outer);
		for (int i = 0; i < threads; i++)
			t[i] = start(run, (void *)(uintptr_t)i);
		for (int i = 0; i < threads; i++)
			pthread_join(t[i], NULL);
		printf("{");
		list("inner", inner, all);
		printf(",");
		list("outer", outer, all);
		say("}");
		free(inner);
		free(outer);
	}
	say("{}");
	return 0;
}
