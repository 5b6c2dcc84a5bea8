// Threads that are cancelled, or exit, inside a function.
//
//	cancel     commands: go N, count, quit
//
// Each round starts a thread that enters inside(i): when i%3 is 0 it is cancelled while it
// waits there, when 1 it calls pthread_exit there, when 2 it returns. "cleaned" counts the
// clean-up handlers that ran; entered = returned + cancelled + exited.
#include "prog.h"
#include <semaphore.h>

static struct {
	uint64_t entered, returned, cancelled, exited, cleaned, bad;
} n;
static sem_t in;

static void cleanup(void *arg) {
	(void)arg;
	__atomic_add_fetch(&n.cleaned, 1, __ATOMIC_RELAXED);
}

NOINLINE uint64_t inside(uint64_t i) {
	uint64_t r = i * 2;
	pthread_cleanup_push(cleanup, NULL);
	__atomic_add_fetch(&n.entered, 1, __ATOMIC_RELAXED);
	sem_post(&in);
	if (i % 3 == 0)
		for (;;)
			pause();
	if (i % 3 == 1)
		pthread_exit((void *)-2);
	pthread_cleanup_pop(0);
	return r;
}

static void *work(void *arg) { return (void *)inside((uintptr_t)arg); }

static void round_(uint64_t i) {
	pthread_t t = start(work, (void *)i);
	void *r;
	while (sem_wait(&in) != 0)
		;
	if (i % 3 == 0)
		pthread_cancel(t);
	pthread_join(t, &r);
	if (r == PTHREAD_CANCELED)
		n.cancelled++;
	else if (r == (void *)-2)
		n.exited++;
	else
		n.returned++, n.bad += r != (void *)(2 * i);
}

static void report(void) {
	say("{\"inside\":%" PRIu64 ",\"returned\":%" PRIu64 ",\"cancelled\":%" PRIu64 ",\"exited\":%" PRIu64
	    ",\"cleaned\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
	    n.entered, n.returned, n.cancelled, n.exited, n.cleaned, n.bad);
}

int main(void) {
	char line[256];
	sem_init(&in, 0, 0);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				round_(i);
		report();
	}
	report();
	return 0;
}
