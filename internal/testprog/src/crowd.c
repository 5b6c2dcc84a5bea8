// Many threads, most of which sleep, and ten thousand functions.
//
//	crowd THREADS     commands: gap (has a spinning thread answer with the largest gap that it saw since the
//	                  last gap, in ns), all N (calls each function N times), count, quit
//
// Threads wait in turns for a condition, in epoll_wait, in poll, in read, or sleep for some
// milliseconds over and over and call nap_done after it. One more thread spins. "interrupted" counts what
// epoll_wait should not have returned: EINTR, without a signal.
#include "prog.h"
#include <poll.h>
#include <sys/epoll.h>

#define ONE(n) NOINLINE uint64_t f_##n(uint64_t a) { return a * 3 + 1##n % 1000; }
#define TEN(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7) X(n##8) X(n##9)
#define ONES(n) TEN(ONE, n)
#define TENS(n) ONES(n##0) ONES(n##1) ONES(n##2) ONES(n##3) ONES(n##4) ONES(n##5) ONES(n##6) ONES(n##7) ONES(n##8) ONES(n##9)
#define HUNDREDS(n) TENS(n##0) TENS(n##1) TENS(n##2) TENS(n##3) TENS(n##4) TENS(n##5) TENS(n##6) TENS(n##7) TENS(n##8) TENS(n##9)
HUNDREDS(0) HUNDREDS(1) HUNDREDS(2) HUNDREDS(3) HUNDREDS(4) HUNDREDS(5) HUNDREDS(6) HUNDREDS(7) HUNDREDS(8) HUNDREDS(9)

#undef ONE
#define ONE(n) f_##n,
static uint64_t (*const all[])(uint64_t) = {
    HUNDREDS(0) HUNDREDS(1) HUNDREDS(2) HUNDREDS(3) HUNDREDS(4) HUNDREDS(5) HUNDREDS(6) HUNDREDS(7) HUNDREDS(8) HUNDREDS(9)};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static volatile uint64_t gap, asked, answered, naps, interrupted;
static uint64_t calls, sum;
static int pipes[2];

NOINLINE uint64_t nap_done(uint64_t a) { return a + 1; }

static void *spin(void *arg) {
	uint64_t largest = 0;
	for (uint64_t last = now_ns();;) {
		uint64_t question = asked, now = now_ns(); // in this order: what it stood until it was asked counts
		if (now - last > largest)
			largest = now - last;
		last = now;
		if (answered != question) {
			gap = largest;
			largest = 0;
			answered = question;
		}
	}
	return arg;
}

static void *waits(void *arg) {
	struct epoll_event e;
	struct pollfd p = {.fd = pipes[0], .events = POLLIN};
	char c;
	for (;;)
		switch ((uintptr_t)arg % 5) {
		case 0:
			pthread_mutex_lock(&lock);
			pthread_cond_wait(&never, &lock);
			pthread_mutex_unlock(&lock);
			break;
		case 1: {
			int ep = epoll_create1(0);
			if (ep < 0)
				die("epoll_create1");
			for (;;)
				if (epoll_wait(ep, &e, 1, -1) < 0)
					__atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
		}
		case 2:
			poll(&p, 1, -1);
			break;
		case 3:
			if (read(pipes[0], &c, 1) < 0)
				die("read");
			break;
		default: {
			struct timespec t = {.tv_nsec = 500000000};
			nanosleep(&t, NULL);
			__atomic_fetch_add(&naps, nap_done(0), __ATOMIC_RELAXED);
		}
		}
	return arg;
}

static void report(uint64_t g) { say("{\"gap\":%" PRIu64 ",\"calls\":%" PRIu64 ",\"naps\":%" PRIu64 ",\"interrupted\":%" PRIu64 ",\"sum\":%" PRIu64 "}", g, calls, naps, interrupted, sum); }

int main(int argc, char **argv) {
	char line[256];
	pthread_attr_t small;
	pthread_t t;
	if (argc < 2 || pipe(pipes))
		die("pipe");
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	start(spin, NULL);
	for (uintptr_t i = 0, n = strtoul(argv[1], NULL, 0); i < n; i++)
		if ((errno = pthread_create(&t, &small, waits, (void *)i)))
			die("pthread_create");
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "gap"))
			for (asked++; answered != asked;)
				usleep(100);
		if (is(line, "all"))
			for (uint64_t i = 0, max = number(line, "all", 1); i < max; i++)
				for (size_t f = 0; f < sizeof all / sizeof *all; f++, calls++)
					sum += all[f](i);
		report(gap);
	}
	report(0);
	return 0;
}
