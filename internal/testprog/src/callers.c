// Reads return addresses in all ways that code of its own can.
//
//	callers   commands: go N, hold N, walk, open PATH, make, release, count, quit
//
// "go" makes N rounds: next leads by a jump to dlsym, which asks who calls; own reads its return
// address, over leads by a jump to it. "hold" has a thread stand in N calls of deep inside one
// another; "walk" counts in "strange" the return addresses of these frames, found by frame
// pointers, that do not lead into the program's code, and in "frames" the frames. "open" loads a
// shared object, "make" makes memory that can be executed. "bad" counts results that are wrong.
// build: -fno-omit-frame-pointer
#include "prog.h"
#include <dlfcn.h>
#include <semaphore.h>
#include <sys/mman.h>

extern char __executable_start[], etext[];
static uint64_t next_calls, own_calls, over_calls, deep_calls, frames, strange, bad;
static sem_t standing, go_on;
static void **innermost;

static int ours(void *p) { return (char *)p >= __executable_start && (char *)p < etext; }

NOINLINE void *next(const char *name) {
	next_calls++;
	return dlsym(RTLD_NEXT, name);
}

NOINLINE void *own(void) {
	own_calls++;
	return __builtin_return_address(0);
}

NOINLINE void *over(uint64_t n) {
	over_calls += n;
	return own();
}

NOINLINE uint64_t bottom(uint64_t v) {
	innermost = __builtin_frame_address(0);
	sem_post(&standing);
	while (sem_wait(&go_on))
		;
	return v;
}

static uint64_t (*volatile inner)(uint64_t, uint64_t);
NOINLINE uint64_t deep(uint64_t n, uint64_t v) {
	__atomic_add_fetch(&deep_calls, 1, __ATOMIC_RELAXED);
	if (n <= 1)
		return bottom(v);
	return inner(n - 1, v + 1) + 1;
}

static uint64_t depth;
static void *hold(void *arg) {
	(void)arg;
	bad += deep(depth, 5) != 5 + 2 * (depth - 1);
	return NULL;
}

static void walk(void) {
	frames = strange = 0;
	for (void **f = innermost; frames < depth; f = *f, frames++)
		strange += !ours(f[1]);
}

static void round_(void) {
	bad += next("puts") == NULL;
	bad += !ours(own());
	bad += !ours(over(1));
}

int main(void) {
	char line[256];
	pthread_t t = 0;
	inner = deep;
	sem_init(&standing, 0, 0);
	sem_init(&go_on, 0, 0);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = number(line, "go", 1); i > 0; i--)
				round_();
		if (is(line, "hold")) {
			depth = number(line, "hold", 1);
			t = start(hold, NULL);
			while (sem_wait(&standing))
				;
		}
		if (is(line, "walk"))
			walk();
		if (is(line, "open"))
			bad += dlopen(line + 5, RTLD_NOW) == NULL;
		if (is(line, "make"))
			bad += mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
		if (is(line, "release")) {
			sem_post(&go_on);
			pthread_join(t, NULL);
		}
		say("{\"next\":%" PRIu64 ",\"own\":%" PRIu64 ",\"over\":%" PRIu64 ",\"deep\":%" PRIu64 ",\"frames\":%" PRIu64 ",\"strange\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
		    next_calls, own_calls, over_calls, deep_calls, frames, strange, bad);
	}
	return 0;
}
