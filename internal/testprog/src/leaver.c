// Threads that end inside a function, and calls that wait in it.
//
//	leaver     commands: leave HOW K, hold DEPTH, free, call N, count, quit
//
// "leave" starts K threads with stacks of different sizes. Once all of them are in inside()
// they end there: by pthread_exit when HOW is 0, by the exit system call of the thread alone
// when it is 1, and when it is 2 they leave inside() by longjmp and end then. "hold" has a
// thread call inside() DEPTH times, one in the other, and read from a pipe there; "free" has it
// return. "call" makes N calls that return. entered = returned + left, but for calls held.
#include "prog.h"
#include <alloca.h>
#include <setjmp.h>
#include <sys/syscall.h>

enum how { EXIT, SYSEXIT, JUMP, RETURN, HOLD };

static struct {
	uint64_t inside, returned, left, bad;
} n;
static uint64_t round_no;
static pthread_barrier_t all;
static int pipes[2];
static pthread_t holder;
static __thread jmp_buf home;

NOINLINE uint64_t inside(uint64_t depth, enum how how) {
	char c;
	__atomic_add_fetch(&n.inside, 1, __ATOMIC_RELAXED);
	if (depth > 1) {
		uint64_t r = inside(depth - 1, how) + 1;
		__atomic_add_fetch(&n.returned, 1, __ATOMIC_RELAXED);
		return r;
	}
	if (how == HOLD && read(pipes[0], &c, 1) != 1)
		__atomic_add_fetch(&n.bad, 1, __ATOMIC_RELAXED);
	if (how == RETURN || how == HOLD) {
		__atomic_add_fetch(&n.returned, 1, __ATOMIC_RELAXED);
		return 1;
	}
	__atomic_add_fetch(&n.left, 1, __ATOMIC_RELAXED);
	pthread_barrier_wait(&all);
	if (how == JUMP)
		longjmp(home, 1);
	if (how == SYSEXIT)
		syscall(SYS_exit, 0);
	pthread_exit(NULL);
}

static void *leave(void *arg) {
	uint64_t v = (uintptr_t)arg;
	volatile char *room = alloca(16 * (v >> 8 & 0xff) + 16); // no two rounds have the same stack pointers
	room[0] = 0;
	if (setjmp(home) == 0)
		inside(1, v & 0xff);
	return NULL;
}

static void *hold(void *arg) {
	if (inside((uintptr_t)arg, HOLD) != (uintptr_t)arg)
		n.bad++;
	return NULL;
}

static void leave_all(enum how how, uint64_t k) {
	pthread_t t[512];
	if (k == 0 || k > 512)
		die("leave: 1 to 512 threads");
	pthread_barrier_init(&all, NULL, k);
	for (uint64_t i = 0; i < k; i++) {
		pthread_attr_t a;
		pthread_attr_init(&a);
		pthread_attr_setstacksize(&a, (32 + (round_no + i) % 16) * 4096);
		errno = pthread_create(&t[i], &a, leave, (void *)(uintptr_t)(round_no % 256 << 8 | how));
		if (errno)
			die("pthread_create");
		pthread_attr_destroy(&a);
	}
	for (uint64_t i = 0; i < k; i++)
		pthread_join(t[i], NULL);
	pthread_barrier_destroy(&all);
	round_no++;
}

static void held(uint64_t depth) {
	uint64_t before = n.inside;
	holder = start(hold, (void *)(uintptr_t)depth);
	while (__atomic_load_n(&n.inside, __ATOMIC_RELAXED) < before + depth)
		usleep(100);
}

static void report(void) {
	say("{\"inside\":%" PRIu64 ",\"returned\":%" PRIu64 ",\"left\":%" PRIu64 ",\"bad\":%" PRIu64 "}", n.inside, n.returned, n.left, n.bad);
}

int main(void) {
	char line[256];
	if (pipe(pipes))
		die("pipe");
	say("ready");
	while (command(line) && !is(line, "quit")) {
		unsigned how;
		unsigned long k;
		if (sscanf(line, "leave %u %lu", &how, &k) == 2) {
			leave_all(how, k);
		} else if (is(line, "hold")) {
			held(number(line, "hold", 1));
		} else if (is(line, "free")) {
			if (write(pipes[1], "", 1) != 1)
				die("write");
			pthread_join(holder, NULL);
		} else if (is(line, "call")) {
			for (uint64_t i = 0, max = number(line, "call", 1); i < max; i++)
				n.bad += inside(1, RETURN) != 1;
		}
		report();
	}
	report();
	return 0;
}
