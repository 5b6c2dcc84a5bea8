// A program whose functions handlers are called in. It answers with what it has computed.
// build: -fno-ipa-ra -fno-optimize-sibling-calls
//   add A B        ok SUM                  add(A, B)
//   scale X Y      ok PRODUCT              scale(X, Y), doubles
//   get N          ok N                    get(&record of N)
//   parity A       ok (A odd)              parity(A)
//   leaf A         ok HASH                 nine values in caller-saved registers across add
//   flags F        ok G                    the arithmetic flags F before add, G after it
//   go T N         ok CALLS WRONG          T threads call add N times each
//   run T          ok                      T threads call add until stop
//   stop           ok CALLS WRONG
//   sigs N         ok CALLS WRONG SIGNALS  add N times while a timer's handler calls it too
//   leap N         ok LEAPS                a timer's handler jumps out of calls of add, N times
//   forks N        ok                      N children call add, wrong results end them badly
//   sigfork        ok                      a signal handler that interrupts add forks, and both go on
//   nap            ok                      a thread calls add once; SIGUSR1 makes it sleep
//   asleep         ok 1                    it sleeps in the handler of SIGUSR1, which is sent
//   wake           ok CALLS WRONG          it ends its sleep, and its call
//   seccomp        ok                      no clock_gettime from now on
//   calls          ok CALLS                calls of add in this process so far
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>

#define NOINLINE __attribute__((noinline, noclone))

struct record {
	uint64_t n, pad[3];
};

static atomic_ulong calls;

NOINLINE uint64_t add(uint64_t a, uint64_t b) {
	__asm__ volatile("" ::: "memory");
	return a + b;
}
NOINLINE double scale(double x, double y) {
	__asm__ volatile("" ::: "memory");
	return x * y;
}
NOINLINE uint64_t get(const struct record *r) {
	__asm__ volatile("" ::: "memory");
	return r->n;
}
NOINLINE int parity(uint64_t a) {
	__asm__ volatile("" ::: "memory");
	return a & 1 ? 1 : 0;
}

NOINLINE static uint64_t call(uint64_t a, uint64_t b) {
	atomic_fetch_add(&calls, 1);
	return add(a, b);
}

// leaf keeps a value in each register that a callee may clobber, and in the flags, and
// makes one number of them after the call.
NOINLINE uint64_t leaf(uint64_t a) {
	uint64_t out;
	atomic_fetch_add(&calls, 1);
	__asm__ volatile(
		"lea -256(%%rsp), %%rsp\n"
		"mov %1, %%rdi\n lea 1(%1), %%rsi\n lea 2(%1), %%rdx\n lea 3(%1), %%rcx\n"
		"lea 4(%1), %%r8\n lea 5(%1), %%r9\n lea 6(%1), %%r10\n lea 7(%1), %%r11\n"
		"movq %%rdx, %%xmm7\n movq %%rcx, %%xmm15\n std\n stc\n"
		"call add\n"
		"cld\n"
		"imul $3, %%rdi, %%rdi\n imul $5, %%rsi, %%rsi\n imul $7, %%rdx, %%rdx\n imul $11, %%rcx, %%rcx\n"
		"imul $13, %%r8, %%r8\n imul $17, %%r9, %%r9\n imul $19, %%r10, %%r10\n imul $23, %%r11, %%r11\n"
		"add %%rdi, %%rax\n add %%rsi, %%rax\n add %%rdx, %%rax\n add %%rcx, %%rax\n"
		"add %%r8, %%rax\n add %%r9, %%rax\n add %%r10, %%rax\n add %%r11, %%rax\n"
		"movq %%xmm7, %%rdx\n movq %%xmm15, %%rcx\n add %%rdx, %%rax\n add %%rcx, %%rax\n"
		"lea 256(%%rsp), %%rsp\n"
		: "=&a"(out) : "b"(a) : "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11", "xmm7", "xmm15", "memory", "cc");
	return out;
}

// flags calls add, which changes no flag, with the arithmetic flags f.
NOINLINE uint64_t flags(uint64_t f) {
	uint64_t out;
	__asm__ volatile(
		"lea -256(%%rsp), %%rsp\n"
		"push %1\n popfq\n call add\n pushfq\n pop %0\n cld\n"
		"lea 256(%%rsp), %%rsp\n"
		: "=b"(out) : "b"(f | 0x202) : "rax", "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11", "memory", "cc");
	return out & 0x8d5;
}

static atomic_ulong done_, wrong;
static atomic_int stop_;
static uint64_t per_thread;

static void *thread(void *arg) {
	uint64_t t = (uintptr_t)arg;
	for (uint64_t i = 0; per_thread ? i < per_thread : !atomic_load(&stop_); i++) {
		if (call(t << 32, i) != (t << 32) + i)
			atomic_fetch_add(&wrong, 1);
		atomic_fetch_add(&done_, 1);
	}
	return NULL;
}

static pthread_t threads[64];
static int running;

static void start(int n, uint64_t each) {
	atomic_store(&done_, 0);
	atomic_store(&wrong, 0);
	atomic_store(&stop_, 0);
	per_thread = each;
	for (running = 0; running < n; running++)
		threads[running] = go(thread, (void *)(uintptr_t)running);
}

static void join(void) {
	atomic_store(&stop_, 1);
	while (running > 0)
		pthread_join(threads[--running], NULL);
	say("ok %lu %lu", atomic_load(&done_), atomic_load(&wrong));
}

static void timer(int usec) {
	struct itimerval t = {{0, usec}, {0, usec}};
	if (setitimer(ITIMER_REAL, &t, NULL))
		die("setitimer");
}

static volatile uint64_t signals_;

static void on_alarm(int sig) {
	(void)sig;
	uint64_t n = ++signals_; // it is interrupted by the next one
	if (call(1000, n) != 1000 + n)
		atomic_fetch_add(&wrong, 1);
}

static void sigs(uint64_t n) {
	struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART | SA_NODEFER};
	uint64_t before = atomic_load(&calls);
	atomic_store(&wrong, 0);
	signals_ = 0;
	sigaction(SIGALRM, &sa, NULL);
	timer(2000);
	for (uint64_t i = 0; i < n || signals_ == 0; i++)
		if (call(i, 7) != i + 7)
			atomic_fetch_add(&wrong, 1);
	timer(0);
	say("ok %lu %lu %lu", atomic_load(&calls) - before, atomic_load(&wrong), signals_);
}

static sigjmp_buf away;

static void on_leap(int sig) {
	(void)sig;
	siglongjmp(away, 1);
}

static void leap(uint64_t n) {
	struct sigaction sa = {.sa_handler = on_leap};
	sigaction(SIGALRM, &sa, NULL);
	volatile uint64_t leaps = 0;
	if (sigsetjmp(away, 1))
		leaps++;
	while (leaps < n) {
		struct itimerval t = {{0, 0}, {0, 2000}};
		setitimer(ITIMER_REAL, &t, NULL);
		for (;;)
			call(leaps, 1);
	}
	say("ok %lu", leaps);
}

static void forks(uint64_t n) {
	for (uint64_t i = 0; i < n; i++) {
		pid_t p = fork();
		if (p == 0)
			_exit(call(i, 1) == i + 1 ? 0 : 1);
		int st;
		if (p < 0 || waitpid(p, &st, 0) != p || st != 0) {
			say("bad child");
			return;
		}
	}
	say("ok");
}

static volatile pid_t child = -1;

static void on_fork(int sig) {
	(void)sig;
	if (child < 0)
		child = fork();
}

static void sigfork(void) {
	struct sigaction sa = {.sa_handler = on_fork, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &sa, NULL);
	child = -1;
	timer(2000);
	int bad = 0;
	for (uint64_t i = 0; child < 0; i++)
		bad |= call(i, 1) != i + 1;
	timer(0);
	if (child == 0)
		_exit(bad);
	int st;
	if (waitpid(child, &st, 0) != child || st != 0 || bad)
		say("bad %d %d", st, bad);
	else
		say("ok");
}

static atomic_int napping, awake;

static void on_nap(int sig) {
	(void)sig;
	atomic_store(&napping, 1);
	while (!atomic_load(&awake))
		usleep(1000);
}

static void nap(void) {
	struct sigaction sa = {.sa_handler = on_nap, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &sa, NULL);
	atomic_store(&napping, 0);
	atomic_store(&awake, 0);
	start(1, 1);
	say("ok");
}

static void asleep(void) {
	pthread_kill(threads[0], SIGUSR1);
	while (!atomic_load(&napping))
		usleep(1000);
	say("ok 1");
}

static void refuse(void) {
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = {sizeof f / sizeof f[0], f};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p))
		die("seccomp");
}

int main(void) {
	char b[256];
	uint64_t x, y;
	double f, g;
	say("ready");
	while (line(b, sizeof b)) {
		if (sscanf(b, "add %lu %lu", &x, &y) == 2)
			say("ok %lu", call(x, y));
		else if (sscanf(b, "scale %lf %lf", &f, &g) == 2)
			say("ok %g", scale(f, g));
		else if (sscanf(b, "get %lu", &x) == 1) {
			struct record r = {x, {0}};
			say("ok %lu", get(&r));
		} else if (sscanf(b, "parity %lu", &x) == 1)
			say("ok %d", parity(x));
		else if (sscanf(b, "leaf %lu", &x) == 1)
			say("ok %lu", leaf(x));
		else if (sscanf(b, "flags %lu", &x) == 1)
			say("ok %lu", flags(x));
		else if (sscanf(b, "go %lu %lu", &x, &y) == 2) {
			start(x, y);
			join();
		} else if (sscanf(b, "run %lu", &x) == 1) {
			start(x, 0);
			say("ok");
		} else if (!strcmp(b, "stop"))
			join();
		else if (sscanf(b, "sigs %lu", &x) == 1)
			sigs(x);
		else if (sscanf(b, "leap %lu", &x) == 1)
			leap(x);
		else if (sscanf(b, "forks %lu", &x) == 1)
			forks(x);
		else if (!strcmp(b, "sigfork"))
			sigfork();
		else if (!strcmp(b, "nap"))
			nap();
		else if (!strcmp(b, "asleep"))
			asleep();
		else if (!strcmp(b, "wake")) {
			atomic_store(&awake, 1);
			join();
		} else if (!strcmp(b, "seccomp")) {
			refuse();
			say("ok");
		} else if (!strcmp(b, "calls"))
			say("ok %lu", atomic_load(&calls));
		else
			say("bad %s", b);
	}
	return 0;
}
