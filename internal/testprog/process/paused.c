// Threads that wait in system calls, over and over, until a handler has run: each call has to end with EINTR.
//
//	paused         commands: tids (their ids), count (how often the call of each has ended, or "bad WHAT")
//	paused KIND    the only thread waits in a call of that kind (wait_once), and says what it has returned
//
// Kind 5 is sigsuspend, which lets SIGUSR1 through and nothing else, and says 0 if it has ended without that.
#include "common.h"
#include <sys/epoll.h>

// The call's number and its arguments. The syscall instruction is the 16th byte.
long waits(long nr, const void *a, void *b, long c, long d);
__asm__(".text\n.globl waits\n.type waits, @function\nwaits:\n"
	"	mov %rdi, %rax\n	mov %rsi, %rdi\n	mov %rdx, %rsi\n	mov %rcx, %rdx\n	mov %r8, %r10\n"
	"	syscall\n	lea (%rax), %rcx\n	lea (%rcx), %rax\n	ret\n"
	".size waits, .-waits\n");

enum { KINDS = 5 };
static atomic_int tids[KINDS];
static atomic_long counts[KINDS];
static atomic_long bad;
static int never[2], events;
static volatile sig_atomic_t usr1;

static void on_signal(int sig) { usr1 += sig == SIGUSR1; }

static long suspended(void) {
	int before = usr1;
	uint64_t others = ~(1ul << (SIGUSR1 - 1));
	long r = waits(SYS_rt_sigsuspend, &others, (void *)sizeof others, 0, 0);
	return usr1 == before ? 0 : r;
}

static long wait_once(int kind) {
	struct timespec hour = {3600, 0};
	struct epoll_event e;
	char c;
	switch (kind) {
	case 0: return waits(SYS_pause, NULL, NULL, 0, 0);
	case 1: return waits(SYS_nanosleep, &hour, NULL, 0, 0);
	case 2: return waits(SYS_read, (void *)(long)never[0], &c, 1, 0);
	case 3: return waits(SYS_epoll_wait, (void *)(long)events, &e, 1, -1);
	case 4: return waits(SYS_select, NULL, NULL, 0, 0);
	default: return suspended();
	}
}

static void *wait_on(void *arg) {
	int kind = (uintptr_t)arg;
	tids[kind] = gettid();
	for (;;) {
		long r = wait_once(kind);
		if (r != -EINTR)
			bad = r ? r : 1;
		atomic_fetch_add(&counts[kind], 1);
	}
	return NULL;
}

int main(int argc, char **argv) {
	struct sigaction sa = {.sa_handler = on_signal};
	events = epoll_create1(0);
	if (events < 0 || pipe(never) || sigaction(SIGUSR1, &sa, NULL) || sigaction(SIGUSR2, &sa, NULL))
		die("epoll_create1, pipe, sigaction");
	if (argc > 1 && atoi(argv[1]) == KINDS) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		if (sigprocmask(SIG_BLOCK, &set, NULL))
			die("sigprocmask");
	}
	say("ready");
	for (;argc > 1;)
		say("%ld", wait_once(atoi(argv[1])));
	for (uintptr_t i = 0; i < KINDS; i++)
		go(wait_on, (void *)i);
	char b[64];
	while (line(b, sizeof b)) {
		const atomic_int *t = tids;
		const atomic_long *c = counts;
		if (!strcmp(b, "tids"))
			say("%d %d %d %d %d", t[0], t[1], t[2], t[3], t[4]);
		else if (bad)
			say("bad: a call has ended with %ld", bad);
		else
			say("%ld %ld %ld %ld %ld", c[0], c[1], c[2], c[3], c[4]);
	}
	return 0;
}
