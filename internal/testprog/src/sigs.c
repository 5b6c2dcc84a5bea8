// Signals at a high rate while functions are called that one probes.
// build: -fno-omit-frame-pointer
//
//	sigs [THREADS]     commands: go N (calls by each thread), count, quit
//
// Signals come from an interval timer (SIGPROF), from a thread that floods the others
// (SIGUSR1) and from one that queues values (SIGRTMIN). The handlers call hot too, so that a
// probe there is hit while another hit may be under way, use vector registers, and look at
// the interrupted registers. caller holds known values in all callee-saved registers across
// the calls: "bad" counts a register found changed, in caller afterwards or, where a
// handler interrupted caller or hot themselves, in the saved context. "elsewhere" counts
// interruptions outside them, in a detour for instance, where nothing is expected.
#include "prog.h"
#include <sys/time.h>
#include <ucontext.h>

#define MAX_THREADS 16

struct tally {
	uint64_t calls, handler_calls, signals, elsewhere, bad, pad[3];
};
static struct tally tallies[MAX_THREADS + 1];
static __thread struct tally *mine;
static pthread_t threads[MAX_THREADS];
static int nthreads, flooding, busy;
static uint64_t todo;

// hot(a, b) returns a+b. caller(n, f) calls f(n, n) … f(1, 1) and returns how often
// something was wrong: a result, or one of rbx, rbp, r12-r15 after a call.
uint64_t hot(uint64_t a, uint64_t b);
uint64_t caller(uint64_t n);
extern char caller_loop[], caller_done[], hot_end[];
__asm__(".text\n.p2align 4\n.globl hot\n.type hot, @function\nhot:\n"
	"push %rbp\n mov %rsp, %rbp\n lea (%rdi,%rsi), %rax\n pop %rbp\n ret\n"
	".globl hot_end\nhot_end:\n.size hot, .-hot\n.p2align 4\n"
	".globl caller\n.type caller, @function\ncaller:\n"
	"push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n sub $24, %rsp\n"
	"mov %rdi, 8(%rsp)\n movq $0, (%rsp)\n"
	"mov $0x1b1b1b1b, %rbx\n mov $0x15151515, %rbp\n mov $0x12121212, %r12\n"
	"mov $0x13131313, %r13\n mov $0x14141414, %r14\n mov $0x1f1f1f1f, %r15\n"
	".globl caller_loop\ncaller_loop:\n"
	"mov 8(%rsp), %rdi\n mov %rdi, %rsi\n call hot\n"
	"mov 8(%rsp), %rdi\n add %rdi, %rdi\n cmp %rdi, %rax\n jne 1f\n"
	"cmp $0x1b1b1b1b, %rbx\n jne 1f\n cmp $0x15151515, %rbp\n jne 1f\n cmp $0x12121212, %r12\n jne 1f\n"
	"cmp $0x13131313, %r13\n jne 1f\n cmp $0x14141414, %r14\n jne 1f\n cmp $0x1f1f1f1f, %r15\n je 2f\n"
	"1: incq (%rsp)\n"
	"2: decq 8(%rsp)\n jnz caller_loop\n"
	".globl caller_done\ncaller_done:\n"
	"mov (%rsp), %rax\n add $24, %rsp\n"
	"pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n.size caller, .-caller\n");

static void look(const greg_t *r) {
	char *ip = (char *)r[REG_RIP];
	if (!((ip >= caller_loop && ip < caller_done) || (ip >= (char *)hot && ip < hot_end))) {
		mine->elsewhere++;
		return;
	}
	if (r[REG_RBX] == 0x1b1b1b1b || ip < (char *)hot || ip >= hot_end)
		mine->bad += r[REG_RBX] != 0x1b1b1b1b || r[REG_R12] != 0x12121212 || r[REG_R13] != 0x13131313 ||
			     r[REG_R14] != 0x14141414 || r[REG_R15] != 0x1f1f1f1f;
}

static void handler(int sig, siginfo_t *si, void *ctx) {
	int saved = errno;
	(void)si;
	if (!mine)
		return;
	mine->signals++;
	look(((ucontext_t *)ctx)->uc_mcontext.gregs);
	__asm__ volatile("pcmpeqd %%xmm0, %%xmm0\n movdqa %%xmm0, %%xmm7\n movdqa %%xmm0, %%xmm15" ::: "xmm0", "xmm7", "xmm15");
	mine->handler_calls++;
	const uint64_t n = mine->signals; // another signal may come meanwhile
	mine->bad += hot(n, (uint64_t)sig) != n + (uint64_t)sig;
	errno = saved;
}

static void *work(void *arg) {
	mine = arg;
	for (uint64_t left = todo; left;) {
		uint64_t n = left < 1000 ? left : 1000;
		mine->bad += caller(n);
		mine->calls += n;
		left -= n;
	}
	__atomic_sub_fetch(&busy, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&flooding, __ATOMIC_ACQUIRE))
		usleep(1000);
	return NULL;
}

static void go(uint64_t calls) {
	union sigval v = {.sival_int = 1};
	struct itimerval fast = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
	todo = calls;
	busy = flooding = nthreads;
	for (int i = 0; i < nthreads; i++)
		threads[i] = start(work, &tallies[i]);
	setitimer(ITIMER_PROF, &fast, NULL);
	while (__atomic_load_n(&busy, __ATOMIC_ACQUIRE))
		for (int i = 0; i < nthreads; i++) {
			pthread_kill(threads[i], SIGUSR1);
			pthread_sigqueue(threads[i], SIGRTMIN, v);
		}
	setitimer(ITIMER_PROF, &off, NULL);
	__atomic_store_n(&flooding, 0, __ATOMIC_RELEASE);
	for (int i = 0; i < nthreads; i++)
		pthread_join(threads[i], NULL);
}

static void report(void) {
	struct tally s = {0};
	for (int i = 0; i <= nthreads; i++) {
		s.calls += tallies[i].calls + tallies[i].handler_calls;
		s.handler_calls += tallies[i].handler_calls;
		s.signals += tallies[i].signals;
		s.elsewhere += tallies[i].elsewhere;
		s.bad += tallies[i].bad;
	}
	say("{\"hot\":%" PRIu64 ",\"hot_in_handlers\":%" PRIu64 ",\"signals\":%" PRIu64 ",\"elsewhere\":%" PRIu64
	    ",\"bad\":%" PRIu64 "}",
	    s.calls, s.handler_calls, s.signals, s.elsewhere, s.bad);
}

int main(int argc, char **argv) {
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
	char line[256];
	nthreads = argc > 1 ? atoi(argv[1]) : 2;
	if (nthreads < 1 || nthreads > MAX_THREADS)
		return 2;
	sigaction(SIGPROF, &sa, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGRTMIN, &sa, NULL);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			go(number(line, "go", 1));
		report();
	}
	report();
	return 0;
}
