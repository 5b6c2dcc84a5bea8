// Threads that wait in system calls, over and over, until a handler has run. "tids" answers with the ids of the threads,
// "count" with how often the call of each has ended, or with "bad WHAT": each has to end with EINTR.
#include "common.h"

// The call's number and its arguments. The syscall instruction is the 13th byte.
long waits(long nr, const void *a, void *b, long c);
__asm__(".text\n.globl waits\n.type waits, @function\nwaits:\n"
	"	mov %rdi, %rax\n	mov %rsi, %rdi\n	mov %rdx, %rsi\n	mov %rcx, %rdx\n"
	"	syscall\n	lea (%rax), %rcx\n	lea (%rcx), %rax\n	ret\n"
	".size waits, .-waits\n");

enum { THREADS = 3 };
static atomic_int tids[THREADS];
static atomic_long counts[THREADS];
static atomic_long bad;
static int never[2];

static void on_signal(int sig) { (void)sig; }

static void *wait_in(void *arg) {
	uintptr_t n = (uintptr_t)arg;
	struct timespec hour = {3600, 0};
	char c;
	tids[n] = gettid();
	for (;;) {
		long r = n == 0 ? waits(SYS_pause, NULL, NULL, 0)
		       : n == 1 ? waits(SYS_nanosleep, &hour, NULL, 0)
				: waits(SYS_read, (void *)(long)never[0], &c, 1);
		if (r != -EINTR)
			bad = r ? r : 1;
		atomic_fetch_add(&counts[n], 1);
	}
	return NULL;
}

int main(void) {
	struct sigaction sa = {.sa_handler = on_signal};
	if (pipe(never) || sigaction(SIGUSR1, &sa, NULL))
		die("pipe, sigaction");
	for (uintptr_t i = 0; i < THREADS; i++)
		go(wait_in, (void *)i);
	say("ready");
	char b[64];
	while (line(b, sizeof b)) {
		if (!strcmp(b, "tids"))
			say("%d %d %d", tids[0], tids[1], tids[2]);
		else if (bad)
			say("bad: a call has ended with %ld", bad);
		else
			say("%ld %ld %ld", counts[0], counts[1], counts[2]);
	}
	return 0;
}
