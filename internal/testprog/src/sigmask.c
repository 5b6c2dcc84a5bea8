// Threads in which SIGTRAP, SIGSEGV or everything is blocked.
//
//	sigmask MODE     commands: go N, own, disown, count, quit
//
// MODE: mask (pthread_sigmask of SIGTRAP), all (of every signal), handler (calls happen in a
// handler whose sa_mask is full), ignore (SIGTRAP ignored), onstack (in a handler on a small
// alternative stack), none. In every mode a second thread without any mask calls as well. own
// installs a handler for SIGSEGV that ends the program, disown takes it away.
#include "prog.h"

static struct {
	volatile uint64_t masked, open_, bad;
} n;
static const char *mode;
static uint64_t todo;

NOINLINE uint64_t masked_work(uint64_t a, uint64_t b) { return a * 11 + b; }

static void burst(volatile uint64_t *count) {
	for (uint64_t i = 0; i < todo; i++) {
		if (masked_work(i, 3) != i * 11 + 3)
			__atomic_add_fetch(&n.bad, 1, __ATOMIC_RELAXED);
		*count += 1;
	}
}

static void in_handler(int sig) {
	(void)sig;
	burst(&n.masked);
}

static void by_handler(int flags) {
	struct sigaction sa = {.sa_handler = in_handler, .sa_flags = flags};
	static char alt[8192];
	stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
	if (sigaltstack(&ss, NULL))
		die("sigaltstack");
	sigfillset(&sa.sa_mask);
	sigaction(SIGUSR2, &sa, NULL);
	raise(SIGUSR2);
	ss.ss_flags = SS_DISABLE;
	sigaltstack(&ss, NULL);
}

static void *masked(void *arg) {
	sigset_t s;
	if (strcmp(mode, "handler") == 0) {
		by_handler(0);
		return arg;
	}
	if (strcmp(mode, "onstack") == 0) {
		by_handler(SA_ONSTACK);
		return arg;
	}
	sigemptyset(&s);
	if (strcmp(mode, "mask") == 0)
		sigaddset(&s, SIGTRAP);
	if (strcmp(mode, "all") == 0)
		sigfillset(&s);
	pthread_sigmask(SIG_BLOCK, &s, NULL);
	burst(&n.masked);
	return arg;
}

static void *unmasked(void *arg) {
	burst(&n.open_);
	return arg;
}

static void go(uint64_t calls) {
	todo = calls;
	pthread_t a = start(masked, NULL), b = start(unmasked, NULL);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
}

static void *idle(void *arg) {
	sigset_t s;
	if (strcmp(mode, "all") == 0)
		sigfillset(&s);
	else
		sigemptyset(&s), sigaddset(&s, SIGTRAP);
	if (strcmp(mode, "none") != 0 && strcmp(mode, "ignore") != 0)
		pthread_sigmask(SIG_BLOCK, &s, NULL);
	__atomic_store_n((int *)arg, 1, __ATOMIC_RELEASE);
	while (pause())
		;
	return arg;
}

static void ends(int sig) {
	_exit(100 + sig);
}

static void report(void) {
	say("{\"masked_work\":%" PRIu64 ",\"in_masked\":%" PRIu64 ",\"bad\":%" PRIu64 "}", n.masked + n.open_, n.masked, n.bad);
}

int main(int argc, char **argv) {
	char line[256];
	int up = 0;
	mode = argc > 1 ? argv[1] : "none";
	if (strcmp(mode, "ignore") == 0)
		signal(SIGTRAP, SIG_IGN);
	// A thread with the mask exists all the time, so that whoever attaches can see it.
	start(idle, &up);
	while (!__atomic_load_n(&up, __ATOMIC_ACQUIRE))
		usleep(100);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			go(number(line, "go", 1));
		if (is(line, "own"))
			signal(SIGSEGV, ends);
		if (is(line, "disown"))
			signal(SIGSEGV, SIG_DFL);
		report();
	}
	report();
	return 0;
}
