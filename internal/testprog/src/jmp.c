// Leaves frames by longjmp.
//
//	jmp     commands: go N, count, quit
//
// Each round enters descend DEPTH times recursively, DEPTH = i%8 + 1, and leaves all of them
// by longjmp when i is odd ("jumped" counts those frames), by returning when it is even.
// Every third round uses sigsetjmp/siglongjmp with the signal mask, and every fifth builds
// its frames on another stack (makecontext) and leaves them by switching away for good.
#include "prog.h"
#include <setjmp.h>
#include <ucontext.h>

static struct {
	uint64_t entered, returned, jumped, bad;
} n;
static jmp_buf home;
static sigjmp_buf sighome;
static ucontext_t here, there;
static char stack[1 << 16] __attribute__((aligned(16)));

enum how { RETURN, LONGJMP, SIGLONGJMP, SWITCH };

NOINLINE uint64_t descend(uint64_t depth, enum how how, uint64_t v) {
	n.entered++;
	if (depth == 1) {
		switch (how) {
		case RETURN:
			break;
		case LONGJMP:
			longjmp(home, 1);
		case SIGLONGJMP:
			siglongjmp(sighome, 1);
		case SWITCH:
			setcontext(&here);
		}
		n.returned++;
		return v;
	}
	uint64_t r = descend(depth - 1, how, v + 1) + 1;
	n.returned++;
	return r;
}

static void apart(int depth) { descend(depth, SWITCH, 0); }

static void switch_away(int depth) {
	volatile int back = 0;
	getcontext(&here);
	if (back)
		return;
	back = 1;
	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof stack;
	there.uc_link = NULL;
	makecontext(&there, (void (*)(void))apart, 1, depth);
	setcontext(&there);
}

static void round_(uint64_t i) {
	uint64_t depth = i % 8 + 1;
	if (i % 5 == 4) {
		switch_away(depth);
		n.jumped += depth;
	} else if (i % 2 == 0) {
		n.bad += descend(depth, RETURN, i) != i + 2 * (depth - 1);
	} else if (i % 3 == 0) {
		if (sigsetjmp(sighome, 1) == 0)
			descend(depth, SIGLONGJMP, i);
		n.jumped += depth;
	} else {
		if (setjmp(home) == 0)
			descend(depth, LONGJMP, i);
		n.jumped += depth;
	}
}

static void report(void) {
	say("{\"descend\":%" PRIu64 ",\"returned\":%" PRIu64 ",\"jumped\":%" PRIu64 ",\"bad\":%" PRIu64 "}", n.entered,
	    n.returned, n.jumped, n.bad);
}

int main(void) {
	char line[256];
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
