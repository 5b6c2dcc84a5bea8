// Lives where memory is short.
//
//	miser [KB]     commands: grow KB (more memory, touched), lock (all memory, also what comes), drop
//	               (become a user whose locked memory is limited), count N, quit
//
// It holds KB of memory from the start. Each answer tells how often miser_step ran, how much memory
// it holds, and what it was refused.
#include "prog.h"
#include <sys/mman.h>

static struct {
	uint64_t steps, held, refused, sum;
} n;

NOINLINE uint64_t miser_step(uint64_t a) { return a * 3 + 1; }

static void grow(uint64_t kb) {
	char *p = mmap(NULL, kb << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		n.refused++;
		return;
	}
	for (uint64_t i = 0; i < kb << 10; i += 4096)
		p[i] = 1;
	n.held += kb;
}

static void report(void) {
	say("{\"miser_step\":%" PRIu64 ",\"held\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"sum\":%" PRIu64 "}", n.steps, n.held, n.refused, n.sum);
}

int main(int argc, char **argv) {
	char line[256];
	if (argc > 1)
		grow(strtoull(argv[1], NULL, 0));
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "grow"))
			grow(number(line, "grow", 0));
		if (is(line, "lock") && mlockall(MCL_CURRENT | MCL_FUTURE))
			die("lock");
		if (is(line, "drop") && setresuid(65534, 65534, 65534))
			die("drop");
		if (is(line, "count"))
			for (uint64_t i = 0, max = number(line, "count", 1); i < max; i++, n.steps++)
				n.sum += miser_step(i);
		report();
	}
	report();
	return 0;
}
