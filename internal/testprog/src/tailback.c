// Functions that come back by a jump: back ends in a jump to forth, which ends in one to back's
// entry, at the same place on the stack.
//
//	tailback   commands: go N, deep N, leave N, hold N, release, spin N, rest, count, quit
//
//
// build: -Wl,--no-as-needed -lgcc_s
//
// "go" makes N rounds; round i enters back i%5+1 times before it returns, by itself, with a signal
// whose handler does so too, and on a stack that is left and returned to in between. "deep" enters back
// N times. "leave" makes N rounds that end in longjmp: "left" counts the calls of back that it leaves. "hold"
// has N threads wait inside, thread i after i%5+1 entries; "release" lets them return. "spin" has N
// threads make rounds until "rest". "back" and "forth" count entries, "bad" results that are wrong.
#include "prog.h"
#include <semaphore.h>
#include <setjmp.h>
#include <ucontext.h>

static struct {
	uint64_t back, forth, left, bad;
} n;
#define ADD(x, by) __atomic_add_fetch(&n.x, by, __ATOMIC_RELAXED)

enum how { RETURN, SIGNAL, SWITCH, LEAVE, HOLD };

static jmp_buf home;
static ucontext_t here, there;
static sem_t in, out;

NOINLINE uint64_t inside(uint64_t sum, enum how how) {
	switch (how) {
	case RETURN:
		break;
	case SIGNAL:
		raise(SIGUSR1);
		break;
	case SWITCH:
		swapcontext(&there, &here);
		break;
	case LEAVE:
		longjmp(home, 1);
	case HOLD:
		sem_post(&in);
		while (sem_wait(&out) != 0)
			;
		break;
	}
	return sum * 3;
}

uint64_t forth(uint64_t more, uint64_t sum, enum how how);

NOINLINE uint64_t back(uint64_t more, uint64_t sum, enum how how) {
	ADD(back, 1);
	return more ? forth(more, sum + 1, how) : inside(sum, how);
}

NOINLINE uint64_t forth(uint64_t more, uint64_t sum, enum how how) {
	ADD(forth, 1);
	return back(more - 1, sum + 1, how);
}

static void check(uint64_t entries, uint64_t v, enum how how) {
	ADD(bad, back(entries - 1, v, how) != 3 * (v + 2 * (entries - 1)));
}

static void onsignal(int s) { check(3, (uint64_t)s, RETURN); }

static char stack[1 << 16] __attribute__((aligned(16)));
static void apart(int entries) {
	check((uint64_t)entries, 7, SWITCH);
	setcontext(&here);
}

static void coroutine(uint64_t entries) {
	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof stack;
	there.uc_link = NULL;
	makecontext(&there, (void (*)(void))apart, 1, (int)entries);
	swapcontext(&here, &there);
	check(entries, 9, RETURN);
	swapcontext(&here, &there);
}

static NOINLINE void leave(uint64_t entries) {
	if (setjmp(home) == 0)
		back(entries - 1, 1, LEAVE);
	n.left += entries;
}

static volatile int spin_on;
static void *spin(void *arg) {
	(void)arg;
	for (uint64_t i = 0; spin_on; i++)
		check(i % 5 + 1, i, RETURN);
	return NULL;
}
static void *hold(void *i) {
	check((uint64_t)i % 5 + 1, (uint64_t)i, HOLD);
	return NULL;
}

static void report(void) {
	say("{\"back\":%" PRIu64 ",\"forth\":%" PRIu64 ",\"left\":%" PRIu64 ",\"bad\":%" PRIu64 "}", n.back, n.forth, n.left, n.bad);
}

#define THREADS 16

int main(void) {
	char line[256];
	pthread_t held[THREADS], spins[THREADS];
	uint64_t holds = 0, spun = 0;
	sem_init(&in, 0, 0);
	sem_init(&out, 0, 0);
	signal(SIGUSR1, onsignal);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++) {
				check(i % 5 + 1, i, RETURN);
				check(i % 5 + 1, i, SIGNAL);
				coroutine(i % 5 + 1);
			}
		else if (is(line, "deep"))
			check(number(line, "deep", 1), 1, RETURN);
		else if (is(line, "leave"))
			for (uint64_t i = 0, max = number(line, "leave", 1); i < max; i++)
				leave(i % 5 + 1);
		else if (is(line, "hold"))
			for (uint64_t max = number(line, "hold", 1); holds < max && holds < THREADS; holds++) {
				held[holds] = start(hold, (void *)holds);
				sem_wait(&in);
			}
		else if (is(line, "release")) {
			for (uint64_t i = 0; i < holds; i++)
				sem_post(&out);
			while (holds)
				pthread_join(held[--holds], NULL);
		} else if (is(line, "spin")) {
			spin_on = 1;
			for (uint64_t max = number(line, "spin", 1); spun < max && spun < THREADS; spun++)
				spins[spun] = start(spin, NULL);
		} else if (is(line, "rest")) {
			spin_on = 0;
			while (spun)
				pthread_join(spins[--spun], NULL);
		}
		report();
	}
	report();
	return 0;
}
