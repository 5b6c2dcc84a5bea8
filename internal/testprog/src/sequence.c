// Threads that count by processor in a restartable sequence (rseq).
//
//	sequence [THREADS]     commands: go N, count, quit
//
// "go N" lets each of THREADS (default 4) threads call add N times. A call adds 1 to the
// counter of the processor that it runs on, without a lock: the sum is right only if the
// kernel starts the sequence anew wherever it is interrupted; "bad" is 1 if it is not.
#include "prog.h"
#include <sched.h>
#include <sys/rseq.h>

struct counter {
	uint64_t n;
	uint64_t rest[7];
};

static struct counter counters[1024] __attribute__((aligned(64)));

static struct rseq *mine(void) { return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset); }

// add gives how often the sequence was started. Its instructions are add_first (before the
// sequence), add_start, add_middle, add_end (the first behind it) and add_abort.
NOINLINE long add(struct counter *counters, struct rseq *rs) {
	long tries = 0;
	asm volatile(".pushsection __rseq_cs, \"aw\"\n"
		     ".balign 32\n"
		     "7: .long 0, 0\n"
		     ".quad 1f, 2f - 1f, 4f\n"
		     ".popsection\n"
		     ".globl add_first, add_start, add_middle, add_end, add_abort\n"
		     "add_first: incq %[tries]\n"
		     "leaq 7b(%%rip), %%rax\n"
		     "movq %%rax, 8(%[rs])\n"
		     "add_start: 1: movl 4(%[rs]), %%eax\n"
		     "shlq $6, %%rax\n"
		     "movq (%[c], %%rax), %%rcx\n"
		     "add_middle: incq %%rcx\n"
		     "nop; nop; nop\n"
		     "movq %%rcx, (%[c], %%rax)\n"
		     "add_end: 2: jmp 5f\n"
		     ".byte 0x0f, 0xb9, 0x3d\n" // the signature, as the operand of an instruction
		     ".long %c[sig]\n"
		     "add_abort: 4: jmp add_first\n"
		     "5: movq $0, 8(%[rs])\n"
		     : [tries] "+r"(tries)
		     : [c] "r"(counters), [rs] "r"(rs), [sig] "i"(RSEQ_SIG)
		     : "rax", "rcx", "memory", "cc");
	return tries;
}

static uint64_t rounds, tries, calls;

static void *work(void *arg) {
	uint64_t t = 0;
	(void)arg;
	for (uint64_t i = 0; i < rounds; i++)
		t += (uint64_t)add(counters, mine());
	__atomic_add_fetch(&tries, t, __ATOMIC_RELAXED);
	__atomic_add_fetch(&calls, rounds, __ATOMIC_RELAXED);
	return NULL;
}

static void count(void) {
	uint64_t sum = 0;
	for (int i = 0; i < 1024; i++)
		sum += counters[i].n;
	say("{\"add\": %" PRIu64 ", \"tries\": %" PRIu64 ", \"bad\": %d}", calls, tries, sum != calls);
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 4;
	char line[256];
	if (__rseq_size == 0 || mine()->cpu_id == (uint32_t)RSEQ_CPU_ID_REGISTRATION_FAILED || threads < 1 || threads > 64)
		die("rseq");
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go")) {
			pthread_t t[64];
			rounds = number(line, "go", 1000);
			for (int i = 0; i < threads; i++)
				t[i] = start(work, NULL);
			for (int i = 0; i < threads; i++)
				pthread_join(t[i], NULL);
		}
		count();
	}
	count();
	return 0;
}
