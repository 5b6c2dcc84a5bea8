// Replaces itself by exec.
//
//	exec [GENERATION]     commands: go N, exec PATH (PATH GENERATION+1; itself if there is no PATH),
//	                      thread (the same from another thread), count, quit
//
// After an exec of itself it prints "ready" again and counts from 0 in the next generation.
#include "prog.h"

static uint64_t calls, bad, generation;
static const char *path;

NOINLINE uint64_t gen_work(uint64_t a, uint64_t b) { return a * 13 + b; }

static void *replace(void *arg) {
	char next[24];
	snprintf(next, sizeof next, "%" PRIu64, generation + 1);
	execl(path, path, next, (char *)NULL);
	die("exec");
	return arg;
}

static void report(void) {
	say("{\"gen_work\":%" PRIu64 ",\"generation\":%" PRIu64 ",\"bad\":%" PRIu64 "}", calls, generation, bad);
}

int main(int argc, char **argv) {
	char line[256];
	generation = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++, calls++)
				bad += gen_work(i, 1) != i * 13 + 1;
		if (is(line, "exec")) {
			path = line[4] && line[5] ? line + 5 : argv[0];
			replace(NULL);
		}
		if (is(line, "thread")) {
			path = argv[0];
			pthread_join(start(replace, NULL), NULL);
		}
		report();
	}
	report();
	return 0;
}
