// Processes of unusual shapes:
//   odd vfork [MS]  a thread starts vfork children, each of MS milliseconds (0: for ever)
//   odd sharer      a second process runs on the same memory (clone without CLONE_THREAD)
//   odd leader      the first thread has ended
//   odd rseq        a thread stays in a restartable sequence; "rseq" answers its bounds
//   odd altstack    a signal handler runs on an alternate stack within the main thread's stack
// To each line it answers "ok N"; to "exec" it executes itself again; to "fork" it answers
// with the pid of a child that sleeps.
#include "common.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/wait.h>

static atomic_ulong count;
static const char *self, *mode;
static atomic_int turns[2];

static void *vforks(void *arg) {
	long ms = (long)arg;
	for (;;) {
		pid_t p = vfork();
		if (p == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			struct timespec t = {ms / 1000, ms % 1000 * 1000000};
			if (ms == 0)
				t.tv_sec = 1000000;
			nanosleep(&t, NULL);
			_exit(0);
		}
		waitpid(p, NULL, 0);
		atomic_fetch_add(&count, 1);
		usleep(2000);
	}
	return NULL;
}

// Both processes look for each other to turn.
static int turn(void *arg) {
	int me = (int)(intptr_t)arg;
	if (me == 1)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		atomic_fetch_add(&turns[me], 1);
		usleep(100);
	}
	return 0;
}

static void *turn_thread(void *arg) {
	turn(arg);
	return NULL;
}

static char sharer_stack[65536] __attribute__((aligned(16)));

extern char rseq_begin[], rseq_end[], rseq_aborted[];

static void *rseq(void *arg) {
	(void)arg;
	if (__rseq_size == 0)
		die("rseq is not registered");
	struct rseq *r = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
	static struct rseq_cs cs __attribute__((aligned(32)));
	cs.start_ip = (uintptr_t)rseq_begin;
	cs.post_commit_offset = rseq_end - rseq_begin;
	cs.abort_ip = (uintptr_t)rseq_aborted;
	for (;;) {
		asm volatile(R"(
			.globl rseq_begin, rseq_end, rseq_aborted
			mov %0, %1
		rseq_begin:
			pause
			jmp rseq_begin
		rseq_end:
			.long 0x53053053
		rseq_aborted:
		)" : : "r"(&cs), "m"(r->rseq_cs) : "memory");
		atomic_fetch_add(&count, 1);
	}
	return NULL;
}

// bound ends this process with its parent.
static void bound(pid_t parent) {
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
}

static volatile int guard;

static void on_alt(int sig) {
	(void)sig;
	for (;;) {
		char b[64];
		if (!line(b, sizeof b))
			_exit(0);
		say(guard == 1234 ? "ok 1" : "bad frame below the alternate stack");
	}
}

// Bytes right below the alternate stack, in the same mapping, that must not change.
static int altstack(void) {
	struct {
		unsigned char below[16384];
		char stack[16384];
	} s;
	for (size_t i = 0; i < sizeof s.below; i++)
		s.below[i] = i * 3;
	guard = 1234;
	stack_t st = {.ss_sp = s.stack, .ss_size = sizeof s.stack};
	struct sigaction sa = {.sa_handler = on_alt, .sa_flags = SA_ONSTACK | SA_NODEFER};
	if (sigaltstack(&st, NULL) || sigaction(SIGUSR1, &sa, NULL))
		die("sigaltstack");
	say("ready");
	raise(SIGUSR1);
	return s.below[3];
}

static void *lines(void *arg) {
	(void)arg;
	char b[64];
	while (line(b, sizeof b)) {
		if (!strcmp(b, "exec")) {
			execl(self, self, mode, NULL);
			die(self);
		}
		if (!strcmp(b, "fork")) {
			pid_t parent = getpid(), p = fork();
			if (p == 0) {
				bound(parent);
				close(0), close(1), close(2);
				for (;;)
					pause();
			}
			say("%d", p);
			continue;
		}
		if (!strcmp(b, "rseq")) {
			say("%lu %lu %lu", (unsigned long)rseq_begin, (unsigned long)rseq_end, (unsigned long)rseq_aborted);
			continue;
		}
		if (!strcmp(mode, "sharer")) {
			int a = turns[0], z = turns[1];
			while (turns[0] == a || turns[1] == z)
				usleep(100);
		}
		say("ok %lu", count);
	}
	_exit(0);
}

int main(int argc, char **argv) {
	self = argv[0];
	mode = argc > 1 ? argv[1] : "";
	if (!strcmp(mode, "altstack"))
		return altstack();
	if (!strcmp(mode, "vfork"))
		go(vforks, (void *)(argc > 2 ? atol(argv[2]) : 0l));
	if (!strcmp(mode, "rseq"))
		go(rseq, NULL);
	if (!strcmp(mode, "sharer")) {
		go(turn_thread, (void *)0);
		// The second process has no thread area of its own: it does nothing but system calls
		// and atomics, and dies with its parent.
		if (clone(turn, sharer_stack + sizeof sharer_stack, CLONE_VM | SIGCHLD, (void *)1) < 0)
			die("clone");
	}
	if (!strcmp(mode, "leader")) {
		go(lines, NULL);
		say("ready");
		pthread_exit(NULL);
	}
	say("ready");
	lines(NULL);
}
