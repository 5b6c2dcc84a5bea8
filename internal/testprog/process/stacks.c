// Calls that wait, or have been left, on stacks that share a mapping with other ones.
//
//	stacks CASE
//
// The second line says of one call where its return address stands and what it is. Then the
// program waits for the end of its input.
#include "common.h"
#include <alloca.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 256 << 10, FIBER = 32 << 10, PAGE = 4096, GUARD_INSTALL = 102 };

#define NOINLINE __attribute__((noinline, noclone))

static volatile uintptr_t slot, ret;
static pthread_barrier_t reached;

static void finish(void) {
	char b[64];
	say("%lx %lx", slot, ret);
	while (line(b, sizeof b))
		;
	_exit(0);
}

// held is the call: it does f, far below its return address.
static NOINLINE void held(void (*f)(void)) {
	slot = (uintptr_t)__builtin_frame_address(0) + 8;
	ret = (uintptr_t)__builtin_return_address(0);
	f();
	asm volatile("");
}

static int touch;

// deep makes the call where what runs later on the same stack does not write over it. The pages in
// between are used if touch is set.
static NOINLINE void deep(void (*f)(void)) {
	char room[4 * PAGE];
	if (touch)
		memset(room, 1, sizeof room);
	asm volatile("" : : "r"(room) : "memory");
	held(f);
	asm volatile("" : : "r"(room) : "memory");
}

static void wait_for_ever(void) {
	pthread_barrier_wait(&reached);
	for (;;)
		pause();
}

static void *nothing(void *arg) { return arg; }

static void *idle(void *arg) {
	(void)arg;
	wait_for_ever();
	return NULL;
}

static void *holding(void *arg) {
	(void)arg;
	held(wait_for_ever);
	return NULL;
}

// A call that is left by a jump.
static __thread jmp_buf home;

static void leave(void) { longjmp(home, 1); }

static void *leaving(void *arg) {
	if (setjmp(home) == 0)
		deep(leave);
	if (arg)
		wait_for_ever();
	return NULL;
}

// A coroutine that waits in a call.
static ucontext_t main_context, fiber_context;

static void back(void) { swapcontext(&fiber_context, &main_context); }

static void fiber(void) { held(back); }

static void hold_fiber(char *stack) {
	getcontext(&fiber_context);
	fiber_context.uc_stack.ss_sp = stack;
	fiber_context.uc_stack.ss_size = FIBER;
	memset(stack, 1, FIBER);
	makecontext(&fiber_context, fiber, 0);
	swapcontext(&main_context, &fiber_context);
}

// The handler is further below its signal frame than a short look from the stack pointer reaches.
static void on_signal(int sig) {
	(void)sig;
	volatile char *room = alloca(100 << 10);
	room[0] = 1;
	finish();
	room[0] = 2;
}

static void interrupted(void) { raise(SIGUSR1); }

static NOINLINE void alternate(void) {
	char stack[STACK];
	stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	if (sigaltstack(&s, NULL) || sigaction(SIGUSR1, &a, NULL))
		die("sigaltstack");
	held(interrupted);
	asm volatile("" : : "r"(stack) : "memory");
}

static void *alternating(void *arg) {
	(void)arg;
	alternate();
	return NULL;
}

// started runs f on a stack of ours.
static pthread_t started(char *stack, size_t size, void *(*f)(void *), void *arg) {
	pthread_t t;
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setstack(&a, stack, size);
	errno = pthread_create(&t, &a, f, arg);
	if (errno)
		die("pthread_create");
	return t;
}

int main(int argc, char **argv) {
	const char *c = argc > 1 ? argv[1] : "";
	pthread_barrier_init(&reached, NULL, 2);
	// Pages that nobody may touch keep this mapping apart from any other.
	char *all = mmap(NULL, 2 * PAGE + 4 * STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *m = all + PAGE;
	if (all == MAP_FAILED || mprotect(m, 4 * STACK, PROT_READ | PROT_WRITE) || madvise(m, 4 * STACK, MADV_NOHUGEPAGE))
		die("mmap");
	char *end = m + 4 * STACK;
	say("ready");
	touch = strcmp(c, "left") != 0;
	if (!strcmp(c, "alternate")) {
		alternate();
	} else if (!strcmp(c, "alternate-thread")) {
		pthread_join(started(m, 4 * STACK, alternating, NULL), NULL);
	} else if (!strcmp(c, "pair") || !strcmp(c, "guarded")) { // two threads' stacks
		started(m, 2 * STACK, holding, NULL);
		pthread_barrier_wait(&reached);
		if (!strcmp(c, "guarded")) // as the C library does from 2.42 on; an older kernel refuses
			madvise(m + 2 * STACK, PAGE, GUARD_INSTALL);
		started(m + 2 * STACK + PAGE, 2 * STACK - PAGE, idle, NULL);
		pthread_barrier_wait(&reached);
	} else if (!strcmp(c, "fiber-above-dead")) {
		pthread_join(started(m, 4 * STACK - FIBER, nothing, NULL), NULL);
		hold_fiber(end - FIBER);
	} else if (!strcmp(c, "fiber-below-dead")) {
		hold_fiber(m);
		pthread_join(started(m + FIBER, 4 * STACK - FIBER, nothing, NULL), NULL);
	} else if (!strcmp(c, "fiber-below-living")) { // all of both stacks was used; a guard is between them
		hold_fiber(m);
		memset(m + FIBER + PAGE, 1, 4 * STACK - FIBER - PAGE);
		madvise(m + FIBER, PAGE, GUARD_INSTALL); // an older kernel refuses: the page is untouched there
		started(m + FIBER + PAGE, 4 * STACK - FIBER - PAGE, idle, NULL);
		pthread_barrier_wait(&reached);
	} else if (!strcmp(c, "left")) {
		leaving(NULL);
	} else if (!strcmp(c, "left-thread")) {
		started(m, 4 * STACK, leaving, m);
		pthread_barrier_wait(&reached);
	} else if (!strcmp(c, "left-dead")) {
		pthread_join(started(m, 4 * STACK, leaving, NULL), NULL);
	} else {
		die("unknown case");
	}
	finish();
}
