// Threads whose calls nest at random, and that know for themselves what each call is in.
//
//	nests [THREADS]   commands: go N, serve N, count, quit
//
// "go" has each of THREADS threads, 4 of them by default, make N trees of calls. Each call has a number of its own, and is given that
// of the call that it is in, 0 if there is none:
//
//	nest_work(id, in, depth)   calls others; returns -1 for an id that 5 divides, else id
//	nest_leaf(id, in)          calls nothing
//	nest_tail(id, in)          ends in a jump to nest_leaf, which is in it
//	nest_try(id, in)           calls nest_throw behind a frame of its own size, and then nest_leaf
//	nest_throw(id, in)         calls nest_leaf, and leaves by longjmp to nest_try
//	nest_serve(id, in, header) calls nest_work
//
// "serve" calls nest_serve N times. header is a traceparent of version 00: its trace id is id<<64|id+1, its span id is id+2, and its flags
// are 00 if 3 divides id, else 01 ("kept" counts these).
//
// The answer has how often each was called, how many calls of nest_work have returned -1 ("failed"), and how many have no call that
// they are in ("roots").
#include <setjmp.h>

#include "prog.h"

static uint64_t work, leaf, tail, try, throw, serve, kept, failed, roots;
static int threads = 4;
static uint64_t trees;

static __thread uint64_t last, seed;
static __thread jmp_buf back;

static void add(uint64_t *n) { __atomic_add_fetch(n, 1, __ATOMIC_RELAXED); }

static uint64_t next(void) { return ++last; }

static uint64_t chance(uint64_t n) {
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % n;
}

NOINLINE int64_t nest_leaf(uint64_t id, uint64_t in) {
	add(&leaf);
	asm volatile("" ::"r"(in) : "memory");
	return (int64_t)id;
}

NOINLINE int64_t nest_tail(uint64_t id, uint64_t in) {
	add(&tail);
	asm volatile("" ::"r"(in) : "memory");
	return nest_leaf(next(), id);
}

NOINLINE void nest_throw(uint64_t id, uint64_t in) {
	add(&throw);
	asm volatile("" ::"r"(in) : "memory");
	if (id == 0)
		return; // never: a function without a return takes no return probe
	nest_leaf(next(), id);
	longjmp(back, 1);
}

// hop is a frame of a size.
NOINLINE void hop(uint64_t size, uint64_t in) {
	char room[size];
	asm volatile("" ::"r"(room) : "memory");
	nest_throw(next(), in);
	asm volatile("" ::"r"(room) : "memory");
}

NOINLINE int64_t nest_try(uint64_t id, uint64_t in) {
	add(&try);
	asm volatile("" ::"r"(in) : "memory");
	volatile uint64_t self = id;
	if (setjmp(back) == 0)
		hop(16 + chance(300), self);
	return nest_leaf(next(), self);
}

NOINLINE int64_t nest_work(uint64_t id, uint64_t in, uint32_t depth) {
	add(&work);
	if (in == 0)
		add(&roots);
	for (uint64_t n = depth ? chance(4) : 0; n > 0; n--) {
		switch (chance(8)) {
		case 0:
			nest_try(next(), id);
			break;
		case 1:
			nest_tail(next(), id);
			break;
		case 2:
			nest_leaf(next(), id);
			break;
		default:
			nest_work(next(), id, depth - 1);
		}
	}
	if (id % 5)
		return (int64_t)id;
	add(&failed);
	return -1;
}

NOINLINE int64_t nest_serve(uint64_t id, uint64_t in, const char *header) {
	add(&serve);
	asm volatile("" ::"r"(in), "r"(header) : "memory");
	int64_t n = nest_work(next(), id, 4);
	asm volatile("" ::: "memory");
	return n;
}

static void *serving(void *arg) {
	last = (uint64_t)arg;
	seed = 88172645463325252u ^ last;
	for (uint64_t i = 0; i < trees; i++) {
		uint64_t id = next();
		char header[64];
		snprintf(header, sizeof header, "00-%016" PRIx64 "%016" PRIx64 "-%016" PRIx64 "-%02x", id, id + 1, id + 2, id % 3 ? 1 : 0);
		if (id % 3)
			add(&kept);
		nest_serve(id, 0, header);
	}
	return NULL;
}

static void *run(void *arg) {
	last = (uint64_t)arg;
	seed = 88172645463325252u ^ last;
	for (uint64_t i = 0; i < trees; i++)
		nest_work(next(), 0, 8);
	return NULL;
}

int main(int argc, char **argv) {
	char line[256];
	uint64_t rounds = 0;
	if (argc > 1)
		threads = atoi(argv[1]);
	if (threads < 1 || threads > 64)
		return 2;
	say("ready");
	while (command(line) && !is(line, "quit")) {
		pthread_t t[64];
		int serves = is(line, "serve"), n = serves ? 1 : is(line, "go") ? threads : 0;
		trees = number(line, serves ? "serve" : "go", 1);
		for (int i = 0; i < n; i++)
			t[i] = start(serves ? serving : run, (void *)(uintptr_t)(++rounds << 32));
		for (int i = 0; i < n; i++)
			pthread_join(t[i], NULL);
		say("{\"work\":%" PRIu64 ",\"leaf\":%" PRIu64 ",\"tail\":%" PRIu64 ",\"try\":%" PRIu64 ",\"throw\":%" PRIu64 ",\"serve\":%" PRIu64 ",\"kept\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"roots\":%" PRIu64 "}",
		    work, leaf, tail, try, throw, serve, kept, failed, roots);
	}
	say("{}");
	return 0;
}
