// Straight-line functions that threads call all the time, for probes that come and go.
// build: -fcf-protection=none -fno-stack-protector
//
//	toggle [THREADS]     commands: run, stop, count, where, quit
//
// "run" lets the threads (8) call all functions in turn until "stop", which answers when each of
// them waits. "count" answers how many calls of each function have returned, as the others do;
// "bad" counts results that were wrong. "where" tells where the tallies of the threads
// lie, an array of struct tally: a call is counted before it is made and when it has returned.
// Every instruction of a function runs once in each call.
#include "prog.h"

#define MAX_THREADS 64
#define FUNCS 16

static struct tally {
	uint64_t begun[FUNCS], ended[FUNCS], bad;
	uint64_t pad[7];
} tallies[MAX_THREADS];

static uint64_t table[8] = {3, 1, 4, 1, 5, 9, 2, 6};

// Bodies of different instructions: short and long ones, memory relative to the instruction
// pointer, pushes, flags that live across instructions, and vector registers.
#define MIX(a, b, n) (a = (a << n | a >> (64 - n)) ^ (b + 0x9e3779b97f4a7c15u), b += a * 5)
#define BODY(n)                                                           \
	NOINLINE uint64_t t_##n(uint64_t a, uint64_t b) {                       \
		MIX(a, b, (n + 3));                                               \
		a += table[n & 7];                                                \
		if (n & 1)                                                        \
			MIX(b, a, (n + 5));                                       \
		if (n & 2) {                                                      \
			unsigned __int128 w = (unsigned __int128)a * b;           \
			a ^= (uint64_t)w ^ (uint64_t)(w >> 64);                   \
		}                                                                 \
		if (n & 4) {                                                      \
			double d = (double)(uint32_t)a * 0.5 + n;                 \
			b += (uint64_t)(int64_t)d;                                \
		}                                                                 \
		if (n & 8)                                                        \
			__asm__("push %0\n add %1, %0\n adc $0, %0\n pop %0" : "+r"(b), "+r"(a)); \
		return a - b;                                                     \
	}
BODY(0) BODY(1) BODY(2) BODY(3) BODY(4) BODY(5) BODY(6) BODY(7)
BODY(8) BODY(9) BODY(10) BODY(11) BODY(12) BODY(13) BODY(14) BODY(15)

static uint64_t (*const funcs[FUNCS])(uint64_t, uint64_t) = {
	t_0, t_1, t_2, t_3, t_4, t_5, t_6, t_7, t_8, t_9, t_10, t_11, t_12, t_13, t_14, t_15};
static uint64_t want[FUNCS];

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int running, waiting;

static void gate(void) {
	pthread_mutex_lock(&mu);
	waiting++;
	pthread_cond_broadcast(&changed);
	while (!running)
		pthread_cond_wait(&changed, &mu);
	waiting--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
}

static void *work(void *arg) {
	struct tally *t = arg;
	for (;;) {
		if (!__atomic_load_n(&running, __ATOMIC_RELAXED))
			gate();
		for (int i = 0; i < FUNCS; i++) {
			__atomic_store_n(&t->begun[i], t->begun[i] + 1, __ATOMIC_SEQ_CST);
			t->bad += funcs[i](i + 1, i * 7) != want[i];
			__atomic_store_n(&t->ended[i], t->ended[i] + 1, __ATOMIC_SEQ_CST);
		}
	}
	return NULL;
}

static void set(int run, int until) {
	pthread_mutex_lock(&mu);
	__atomic_store_n(&running, run, __ATOMIC_RELAXED);
	pthread_cond_broadcast(&changed);
	while (waiting != until)
		pthread_cond_wait(&changed, &mu);
	pthread_mutex_unlock(&mu);
}

static void report(int threads) {
	char buf[1024];
	int n = 0;
	uint64_t bad = 0;
	for (int i = 0; i < FUNCS; i++) {
		uint64_t sum = 0;
		for (int t = 0; t < threads; t++)
			sum += __atomic_load_n(&tallies[t].ended[i], __ATOMIC_SEQ_CST);
		n += snprintf(buf + n, sizeof buf - n, "\"t_%d\":%" PRIu64 ",", i, sum);
	}
	for (int t = 0; t < threads; t++)
		bad += tallies[t].bad;
	say("{%s\"bad\":%" PRIu64 "}", buf, bad);
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 8;
	char line[256];
	if (threads < 1 || threads > MAX_THREADS)
		return 2;
	for (int i = 0; i < FUNCS; i++)
		want[i] = funcs[i](i + 1, i * 7);
	for (int t = 0; t < threads; t++)
		start(work, &tallies[t]);
	set(0, threads);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "run"))
			__atomic_store_n(&running, 1, __ATOMIC_RELAXED), set(1, 0);
		else if (is(line, "stop"))
			set(0, threads);
		if (is(line, "where"))
			say("{\"tallies\":%" PRIuPTR "}", (uintptr_t)tallies);
		else
			report(threads);
	}
	report(threads);
	return 0;
}
