// Threads that begin and finish numbered spans, each a known number of times.
//
//	spans THREADS ROUNDS KEYS MODE
//
// finish's second number is by 7 more than that of the begin before it with the same id, and by 1000 in a signal handler. By MODE the ids
// of the threads are
//
//	own      each thread's own: rounds of four kinds have a span that is finished twice, one that is begun twice, one, and none
//	shared   the same in all threads: each round has a span
//	jump     the same; and the signal handler leaves by siglongjmp, from wherever the thread was
//
// A signal comes to each thread all the time, and its handler has a span of its own. When all threads have ended, and no signal comes
// any more, each id has one span, with 9 in the place of 7. Prints how often begin and finish were called, finish with a span that was
// begun, spans of handlers, and handlers that jumped. Where they jump, the counts are those of the calls that were begun.
#include <setjmp.h>

#include "prog.h"

static uint64_t rounds, keys, begins, finishes, spans, handled, jumps;
static int running, shared, jumping;
static __thread uint64_t self;
static __thread volatile sig_atomic_t armed;
static __thread sigjmp_buf away;

NOINLINE uint64_t span_begin(uint64_t id, uint32_t n) {
	asm volatile("" ::: "memory");
	return id + n;
}

NOINLINE uint64_t span_finish(uint64_t id, uint64_t n) {
	asm volatile("" ::: "memory");
	return id ^ n;
}

static void add(uint64_t *n) { __atomic_add_fetch(n, 1, __ATOMIC_RELAXED); }

static uint32_t first(uint64_t id) { return (uint32_t)(id * 2654435761u) >> 1; }

static void begin(uint64_t id, uint32_t n) {
	add(&begins);
	if (span_begin(id, n) != id + n)
		die("a wrong result");
}

static void finish(uint64_t id, uint64_t n) {
	add(&finishes);
	if (span_finish(id, n) != (id ^ n))
		die("a wrong result");
}

static void span(uint64_t id, uint64_t n) {
	begin(id, first(id));
	finish(id, first(id) + n);
	add(&spans);
}

static void handler(int sig) {
	(void)sig;
	if (!armed)
		return;
	span(1ull << 60 | self, 1000);
	add(&handled);
	if (jumping) {
		add(&jumps);
		siglongjmp(away, 1);
	}
}

static void turn(uint64_t i) {
	uint64_t id = shared ? i % keys : self << 32 | i % keys;
	if (shared || i % 4 == 2) {
		span(id, 7);
		return;
	}
	switch (i % 4) {
	case 0:
		span(id, 7);
		finish(id, 5);
		break;
	case 1:
		begin(id, first(id) + 1);
		span(id, 7);
		break;
	default:
		finish(id, 3);
	}
}

static void *thread(void *arg) {
	volatile uint64_t i = 0;
	self = (uint64_t)arg;
	sigsetjmp(away, 1);
	armed = 1;
	while (i < rounds) {
		uint64_t now = i;
		i = now + 1;
		turn(now);
	}
	armed = 0;
	__atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

int main(int argc, char **argv) {
	if (argc < 5)
		return 2;
	int n = atoi(argv[1]);
	rounds = strtoull(argv[2], NULL, 0);
	keys = strtoull(argv[3], NULL, 0);
	jumping = strcmp(argv[4], "jump") == 0;
	shared = jumping || strcmp(argv[4], "shared") == 0;
	if (n < 1 || n > 64 || keys < 1)
		return 2;
	struct sigaction a = {.sa_handler = handler};
	if (sigaction(SIGUSR1, &a, NULL))
		die("sigaction");
	pthread_t t[64];
	running = n;
	for (int i = 0; i < n; i++)
		if (pthread_create(&t[i], NULL, thread, (void *)(uintptr_t)i))
			die("pthread_create");
	while (__atomic_load_n(&running, __ATOMIC_SEQ_CST) > 0) {
		for (int i = 0; i < n; i++)
			pthread_kill(t[i], SIGUSR1);
		usleep(50);
	}
	for (int i = 0; i < n; i++)
		if (pthread_join(t[i], NULL))
			die("pthread_join");
	for (int i = 0; i < (shared ? 1 : n); i++)
		for (uint64_t k = 0; k < keys; k++)
			span((uint64_t)i << 32 | k, 9);
	say("{\"begins\":%" PRIu64 ",\"finishes\":%" PRIu64 ",\"spans\":%" PRIu64 ",\"handled\":%" PRIu64 ",\"jumps\":%" PRIu64 "}",
	    begins, finishes, spans, handled, jumps);
	return 0;
}
