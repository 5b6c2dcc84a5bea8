// Threads that call leaf by many ways, each a known number of times.
//
//	stackkeys THREADS ROUNDS DEPTH   a round calls direct, either, and down with a depth below DEPTH
//
// A signal comes to each thread all the time, and its handler calls leaf too. Prints how often leaf was called by which function.
#include "prog.h"

static uint64_t rounds, depth, from_handler;
static int running;

NOINLINE uint64_t leaf(uint64_t v) {
	asm volatile("" ::: "memory");
	return v + 1;
}

NOINLINE uint64_t direct(uint64_t v) { return leaf(v) * 3; }

NOINLINE uint64_t either(uint64_t v) { return v % 3 == 0 ? leaf(v) * 5 : direct(v) * 7; }

NOINLINE uint64_t down(uint64_t n, uint64_t v) { return (n == 0 ? leaf(v) : down(n - 1, v)) + 1; }

static void handler(int sig) {
	(void)sig;
	leaf(0);
	__atomic_add_fetch(&from_handler, 1, __ATOMIC_RELAXED);
}

static void *thread(void *arg) {
	uint64_t bad = 0;
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t d = i % depth;
		bad += direct(i) != 3 * (i + 1);
		bad += either(i) != (i % 3 == 0 ? 5 * (i + 1) : 21 * (i + 1));
		bad += down(d, i) != i + 1 + d + 1;
	}
	__atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
	return bad ? arg : NULL;
}

int main(int argc, char **argv) {
	if (argc < 4)
		return 2;
	int n = atoi(argv[1]);
	rounds = strtoull(argv[2], NULL, 0);
	depth = strtoull(argv[3], NULL, 0);
	if (n < 1 || n > 64 || depth < 1)
		return 2;
	struct sigaction a = {.sa_handler = handler};
	if (sigaction(SIGUSR1, &a, NULL))
		die("sigaction");
	pthread_t t[64];
	running = n;
	for (int i = 0; i < n; i++)
		if (pthread_create(&t[i], NULL, thread, &running))
			die("pthread_create");
	while (__atomic_load_n(&running, __ATOMIC_SEQ_CST) > 0) {
		for (int i = 0; i < n; i++)
			pthread_kill(t[i], SIGUSR1);
		usleep(50);
	}
	for (int i = 0; i < n; i++) {
		void *bad;
		if (pthread_join(t[i], &bad) || bad)
			die("a wrong result");
	}
	uint64_t either_leaf = (rounds + 2) / 3;
	say("{\"direct\":%" PRIu64 ",\"either\":%" PRIu64 ",\"down\":%" PRIu64 ",\"handler\":%" PRIu64 "}",
	    n * (2 * rounds - either_leaf), n * either_leaf, n * rounds, from_handler);
}
