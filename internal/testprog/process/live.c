// A process with a life of its own, that notices when something in it was changed: threads
// that compute, sleep, start and end, and signals. To each line it answers
// "ok ROUNDS SIGNALS" or "bad WHAT".
//   live THREADS CHURN
// THREADS compute a checksum over and over and compare; CHURN start and join short threads
// all the time; an interval timer interrupts them. Every thread has a signal mask of its own,
// and looks whether it still has it.
#include "common.h"
#include <sys/time.h>

static atomic_ulong rounds, signals_;
static char what[256];
static atomic_int bad;

static void fail(const char *s, uint64_t got, uint64_t want) {
	if (atomic_fetch_add(&bad, 1) == 0)
		snprintf(what, sizeof what, "%s: %#lx, want %#lx", s, got, want);
}

static void on_alarm(int sig) {
	(void)sig;
	int e = errno;
	atomic_fetch_add(&signals_, 1);
	errno = e;
}

static uint64_t mask_now(void) {
	uint64_t m = 0;
	if (syscall(SYS_rt_sigprocmask, 0, NULL, &m, 8))
		die("rt_sigprocmask");
	return m;
}

static uint64_t checksum(uint64_t x) {
	for (int i = 0; i < 20000; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		x += (uint64_t)((double)(x & 0xffff) * 1.5);
	}
	return x;
}

static void *compute(void *arg) {
	uint64_t n = (uintptr_t)arg;
	uint64_t mask = 1ul << (SIGUSR1 - 1) | 1ul << (SIGRTMIN + n % 8 - 1);
	if (syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, NULL, 8))
		die("rt_sigprocmask");
	mask = mask_now();
	uint64_t want = checksum(n);
	for (;;) {
		uint64_t got = checksum(n);
		if (got != want)
			fail("checksum", got, want);
		uint64_t m = mask_now();
		if (m != mask)
			fail("signal mask", m, mask);
		atomic_fetch_add(&rounds, 1);
		if (n % 3 == 0) {
			struct timespec t = {0, 200000};
			while (nanosleep(&t, &t) && errno == EINTR)
				;
		}
	}
	return NULL;
}

static void *brief(void *arg) {
	uint64_t n = (uintptr_t)arg, got = checksum(n);
	return (void *)got;
}

static void *churn(void *arg) {
	uint64_t n = (uintptr_t)arg, want = checksum(n);
	for (;;) {
		void *got;
		if (pthread_join(go(brief, arg), &got))
			die("pthread_join");
		if ((uint64_t)got != want)
			fail("checksum of a short thread", (uint64_t)got, want);
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 2, churns = argc > 2 ? atoi(argv[2]) : 0;
	struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	if (sigaction(SIGALRM, &sa, NULL))
		die("sigaction");
	for (int i = 0; i < threads; i++)
		go(compute, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < churns; i++)
		go(churn, (void *)(uintptr_t)(i + 100));
	struct itimerval it = {{0, 3000}, {0, 3000}};
	if (setitimer(ITIMER_REAL, &it, NULL))
		die("setitimer");
	uint64_t mask = mask_now();
	say("ready");
	char b[64];
	while (line(b, sizeof b)) {
		unsigned long before = rounds;
		while (rounds == before && threads + churns > 0)
			usleep(100);
		if (mask_now() != mask)
			fail("signal mask of main", mask_now(), mask);
		if (bad)
			say("bad %s", what);
		else
			say("ok %lu %lu", rounds, signals_);
	}
	return 0;
}
