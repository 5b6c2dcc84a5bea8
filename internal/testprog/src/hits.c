// Calls one function from many threads, and from handlers of signals; others may call it too.
//
//	hits [THREADS [alt]]   commands: go N (every thread calls it N times), run, stop, storm N, count, quit
//
// "run" has the threads call it until "stop". "storm N" is "go N" while a thread more sends SIGUSR1 to the
// others, whose handler calls it. hit(v) returns 7v^(v>>3): "bad" counts results that differ. It counts "hit" itself,
// by whomever it is called, and "nested" are those of its calls with v = NESTED. nested_hit calls it so; nested_signal has
// the handler of SIGUSR2 do that three times, before it returns. "stormed" are the signals of storms. With alt the
// threads have alternate stacks for signals.
#include "prog.h"
#include <sys/syscall.h>

#define MAX_THREADS 64
#define NESTED UINT64_C(0x6e6573746564)

static struct tally {
	uint64_t hit, nested, stormed, bad, pad[4];
} tallies[MAX_THREADS + 1]; // the last one is that of all other threads
static __thread struct tally *own = &tallies[MAX_THREADS];

static void add(uint64_t *n, uint64_t v) { __atomic_fetch_add(n, v, __ATOMIC_RELAXED); }

NOINLINE uint64_t hit(uint64_t v) {
	add(&own->hit, 1);
	if (v == NESTED)
		add(&own->nested, 1);
	return (7 * v) ^ (v >> 3);
}

NOINLINE void nested_hit(void) { hit(NESTED); }

NOINLINE void nested_signal(void) {
	long pid, tid, ret;
	__asm__ volatile("syscall" : "=a"(pid) : "0"(SYS_getpid) : "rcx", "r11", "memory");
	__asm__ volatile("syscall" : "=a"(tid) : "0"(SYS_gettid) : "rcx", "r11", "memory");
	__asm__ volatile("syscall" : "=a"(ret) : "0"(SYS_tgkill), "D"(pid), "S"(tid), "d"(SIGUSR2) : "rcx", "r11", "memory");
}

static void on_usr2(int sig) {
	(void)sig;
	for (int i = 0; i < 3; i++)
		nested_hit();
}

static void on_usr1(int sig) {
	(void)sig;
	add(&own->stormed, 1);
	if (hit(own->stormed) != ((7 * own->stormed) ^ (own->stormed >> 3)))
		add(&own->bad, 1);
}

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t round_no, round_calls;
static int busy, stop, alternate;
static pthread_t workers[MAX_THREADS];

static void *work(void *arg) {
	unsigned t = (unsigned)(uintptr_t)arg;
	own = &tallies[t];
	if (alternate) {
		stack_t ss = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
		if (!ss.ss_sp || sigaltstack(&ss, NULL))
			die("sigaltstack");
	}
	for (uint64_t seen = 0;;) {
		pthread_mutex_lock(&mu);
		while (round_no == seen)
			pthread_cond_wait(&changed, &mu);
		seen = round_no;
		uint64_t n = round_calls;
		pthread_mutex_unlock(&mu);
		for (uint64_t i = 0; i < n && !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
			uint64_t v = (uint64_t)t << 32 | i;
			if (hit(v) != ((7 * v) ^ (v >> 3)))
				add(&own->bad, 1);
		}
		pthread_mutex_lock(&mu);
		busy--;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&mu);
	}
	return NULL;
}

static void begin(int threads, uint64_t n) {
	pthread_mutex_lock(&mu);
	round_no++;
	round_calls = n;
	busy = threads;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
}

static int still(void) {
	pthread_mutex_lock(&mu);
	int n = busy;
	pthread_mutex_unlock(&mu);
	return n;
}

static void end(void) {
	pthread_mutex_lock(&mu);
	while (busy)
		pthread_cond_wait(&changed, &mu);
	pthread_mutex_unlock(&mu);
}

static void report(void) {
	struct tally s = {0};
	for (int t = 0; t <= MAX_THREADS; t++) {
		s.hit += tallies[t].hit;
		s.nested += tallies[t].nested;
		s.stormed += tallies[t].stormed;
		s.bad += tallies[t].bad;
	}
	say("{\"hit\":%" PRIu64 ",\"nested\":%" PRIu64 ",\"stormed\":%" PRIu64 ",\"bad\":%" PRIu64 "}", s.hit, s.nested, s.stormed, s.bad);
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	char line[256];
	if (threads < 1 || threads > MAX_THREADS)
		return 2;
	alternate = argc > 2;
	signal(SIGUSR1, on_usr1);
	signal(SIGUSR2, on_usr2);
	for (int t = 0; t < threads; t++)
		workers[t] = start(work, (void *)(uintptr_t)t);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go")) {
			begin(threads, number(line, "go", 1));
			end();
		} else if (is(line, "storm")) {
			begin(threads, number(line, "storm", 1));
			for (int t = 0; still(); t = (t + 1) % threads)
				pthread_kill(workers[t], SIGUSR1);
			begin(threads, 0); // a thread that comes back has taken its signals
			end();
		} else if (is(line, "run")) {
			begin(threads, UINT64_MAX);
		} else if (is(line, "stop")) {
			__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
			end();
			stop = 0;
		}
		report();
	}
	report();
	return 0;
}
