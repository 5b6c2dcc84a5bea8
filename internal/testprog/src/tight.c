// A function whose entry is too short for a jump: its loop comes back to the third byte. All
// threads block SIGTRAP; with "late" only while they call it.
//
//	tight [late]     commands: go N, count, quit
//
// "go N" calls tight(n, 0x100 + n, &about, 8) for n from 1 to N in a thread that was there
// from the start and the same in a new one. about is {&about, n * 7, n * 9}.
#include "prog.h"

struct about {
	struct about *self;
	uint32_t seven, nine;
};

static struct {
	uint64_t calls, loops, bad;
} n;
static uint64_t todo;
static sigset_t trap;

// tight adds b to 0, n times.
uint64_t tight(uint64_t n, uint64_t b, const struct about *a, uint64_t nowhere);
__asm__(".text\n.p2align 4\n.globl tight\n.type tight, @function\ntight:\n"
	" xor %eax, %eax\n1: add %rsi, %rax\n dec %rdi\n jnz 1b\n ret\n.size tight, .-tight\n.p2align 4\n");

static void burst(void) {
	sigset_t was;
	pthread_sigmask(SIG_BLOCK, &trap, &was);
	for (uint64_t i = 1; i <= todo; i++) {
		struct about a = {&a, (uint32_t)i * 7, (uint32_t)i * 9};
		if (tight(i, 0x100 + i, &a, 8) != i * (0x100 + i))
			__atomic_add_fetch(&n.bad, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&n.calls, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&n.loops, i, __ATOMIC_RELAXED);
	}
	pthread_sigmask(SIG_SETMASK, &was, NULL);
}

static pthread_barrier_t begin, end;

static void *old(void *arg) {
	pthread_barrier_wait(&end);
	for (;;) {
		pthread_barrier_wait(&begin);
		burst();
		pthread_barrier_wait(&end);
	}
	return arg;
}

static void *fresh(void *arg) {
	burst();
	return arg;
}

static void go(uint64_t calls) {
	todo = calls;
	pthread_barrier_wait(&begin);
	pthread_join(start(fresh, NULL), NULL);
	pthread_barrier_wait(&end);
}

static void report(void) {
	say("{\"tight\":%" PRIu64 ",\"loops\":%" PRIu64 ",\"bad\":%" PRIu64 "}", n.calls, n.loops, n.bad);
}

int main(int argc, char **argv) {
	char line[256];
	sigemptyset(&trap);
	sigaddset(&trap, SIGTRAP);
	if (argc < 2 || strcmp(argv[1], "late") != 0)
		pthread_sigmask(SIG_BLOCK, &trap, NULL);
	pthread_barrier_init(&begin, NULL, 2);
	pthread_barrier_init(&end, NULL, 2);
	start(old, NULL);
	pthread_barrier_wait(&end);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			go(number(line, "go", 1));
		report();
	}
	report();
	return 0;
}
