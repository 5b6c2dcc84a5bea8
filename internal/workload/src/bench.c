// The program that kprobe bench measures on: functions whose first instruction is of one
// class each, called in tight loops, and one with a tracepoint written by hand.
// build: -fno-ipa-ra
//
//	bench [BYTES]     commands: run FUNC CALLS THREADS, written, quit
//
// BYTES is the size of a CPU's buffer of the tracepoint, a power of two (1 MiB). "run" lets
// every thread, bound to a CPU of its own, call FUNC(i, n, TEXT, LENGTH) CALLS times in 32 batches
// and answers nanoseconds per call: of the fastest batch and of the median one of all
// threads. "written" answers the tracepoint's records by the heads of its buffers.
//
//	bench_lea     lea, first of all functions the one without any special case
//	bench_endbr   endbr64, lea
//	bench_push    push, lea, pop
//	bench_nop5    5-byte nop, lea
//	bench_ret     ret
//	bench_clock   reads the CPU's counter
//	bench_traced  tracepoint of the four arguments, then as bench_lea
//	bench_deep    calls itself 40 times, the last of them bench_bottom, which is as bench_lea
//	bench_ends    ends in a jump to bench_bottom
//	bench_asked   asks the kernel whether 8 bytes of TEXT are there, as records do before they read
//
// TEXT is a string of LENGTH bytes and its NUL, 16 bytes in all, and behind it the header that a Go string of
// these bytes has.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tracepoint.h"
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define BATCHES 32
#define MAX_THREADS 64

#define BODY "lea (%rdi,%rsi), %rax\n add %rdx, %rax\n add %rcx, %rax\n"
#define FUNCTION(name, code)                                                                      \
	uint64_t name(uint64_t a, uint64_t b, uint64_t c, uint64_t d);                            \
	__asm__(".text\n.p2align 5\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"   \
		code "ret\n.size " #name ", .-" #name "\n.p2align 5, 0xcc\n")

FUNCTION(bench_lea, BODY);
FUNCTION(bench_endbr, "endbr64\n" BODY);
FUNCTION(bench_push, "push %rbp\n" BODY "pop %rbp\n");
FUNCTION(bench_nop5, ".byte 0x0f, 0x1f, 0x44, 0, 0\n" BODY);
FUNCTION(bench_ret, "");
FUNCTION(bench_clock, "rdtsc\n");
FUNCTION(bench_bottom, BODY);
FUNCTION(bench_ends, "lea 8(%rdi), %rdi\n lea -8(%rdi), %rdi\n jmp bench_bottom\n");
// rt_sigprocmask(-1, TEXT, NULL, 8)
FUNCTION(bench_asked, "mov %rdx, %rsi\n mov $-1, %edi\n xor %edx, %edx\n mov $8, %r10d\n mov $14, %eax\n syscall\n");

static const struct {
	char text[16];
	const char *go_text;
	uint64_t go_length;
} text = {"/usr/bin/python", text.text, sizeof text.text - 1};

__attribute__((noinline, used, aligned(32))) uint64_t bench_traced(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
	tracepoint(1, a, b, c, d);
	return a + b + c + d;
}

__attribute__((noinline)) static uint64_t deeper(uint64_t a, uint64_t b, uint64_t c, uint64_t n) {
	uint64_t r = n ? deeper(a, b, c, n - 1) : bench_bottom(a, b, c, n);
	__asm__ volatile("" : "+r"(r)); // no call is the last thing that is done
	return r + 1;
}

static uint64_t bench_deep(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return deeper(a, b, c, 40) + d; }

#define LOOP(name)                                                            \
	__attribute__((noinline, aligned(32))) static void loop_##name(uint64_t n) { \
		for (uint64_t i = 0; i < n; i++)                              \
			name(i, n, (uint64_t)text.text, sizeof text.text - 1); \
	}
LOOP(bench_lea) LOOP(bench_endbr) LOOP(bench_push) LOOP(bench_nop5) LOOP(bench_ret) LOOP(bench_clock)
LOOP(bench_traced) LOOP(bench_deep) LOOP(bench_asked) LOOP(bench_ends)

static const struct function {
	const char *name;
	void (*loop)(uint64_t);
} functions[] = {
	{"bench_lea", loop_bench_lea}, {"bench_endbr", loop_bench_endbr}, {"bench_push", loop_bench_push},
	{"bench_nop5", loop_bench_nop5}, {"bench_ret", loop_bench_ret}, {"bench_traced", loop_bench_traced},
	{"bench_clock", loop_bench_clock}, {"bench_deep", loop_bench_deep}, {"bench_asked", loop_bench_asked},
	{"bench_ends", loop_bench_ends},
};

static struct {
	void (*loop)(uint64_t);
	uint64_t calls;
	pthread_barrier_t together;
	double ns[MAX_THREADS * BATCHES];
} job;

static void fail(const char *why) {
	fprintf(stderr, "bench: %s\n", why);
	exit(2);
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

// bind_to binds the thread to the t-th of the CPUs that the program may use.
static void bind_to(int t) {
	cpu_set_t may, one;
	sched_getaffinity(0, sizeof may, &may);
	t %= CPU_COUNT(&may);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &may) && t-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof one, &one);
			return;
		}
}

static void *work(void *arg) {
	int t = (int)(uintptr_t)arg;
	uint64_t n = job.calls / BATCHES;
	bind_to(t);
	tracepoint_enter();
	pthread_barrier_wait(&job.together);
	for (int b = 0; b < BATCHES; b++) {
		double start = now();
		job.loop(n);
		job.ns[t * BATCHES + b] = (now() - start) / (double)n;
	}
	return NULL;
}

static int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void run(const char *name, uint64_t calls, int threads) {
	pthread_t t[MAX_THREADS];
	job.loop = NULL;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (strcmp(name, functions[i].name) == 0)
			job.loop = functions[i].loop;
	if (!job.loop)
		fail("no such function");
	if (threads < 1 || threads > MAX_THREADS || calls < BATCHES)
		fail("run: at least 32 calls and 1 to 64 threads");
	job.calls = calls / BATCHES * BATCHES;
	pthread_barrier_init(&job.together, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++)
		if (pthread_create(&t[i], NULL, work, (void *)(uintptr_t)i))
			fail("pthread_create");
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	pthread_barrier_destroy(&job.together);
	qsort(job.ns, (size_t)threads * BATCHES, sizeof *job.ns, ascending);
	printf("{\"func\":\"%s\",\"threads\":%d,\"calls\":%" PRIu64 ",\"min\":%.3f,\"median\":%.3f}\n", name, threads,
	       job.calls * (uint64_t)threads, job.ns[0], job.ns[threads * BATCHES / 2]);
}

static void written(void) {
	uint64_t sum = 0;
	for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF); cpu++)
		sum += ((struct tracepoint_buffer *)(tracepoint_buffers + (uint64_t)cpu * tracepoint_stride))->head;
	printf("{\"records\":%" PRIu64 "}\n", sum / sizeof(struct tracepoint_record));
}

int main(int argc, char **argv) {
	char line[256], name[64];
	uint64_t calls, size = argc > 1 ? strtoull(argv[1], NULL, 0) : 1 << 20;
	int threads;
	if (size < 4096 || (size & (size - 1)) || !tracepoint_open(size))
		fail("no buffers: BYTES must be a power of two, the C library must register rseq areas");
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) && strncmp(line, "quit", 4)) {
		if (sscanf(line, "run %63s %" SCNu64 " %d", name, &calls, &threads) == 3)
			run(name, calls, threads);
		else if (strncmp(line, "written", 7) == 0)
			written();
		else
			fail("commands: run FUNC CALLS THREADS, written, quit");
		fflush(stdout);
	}
	return 0;
}
