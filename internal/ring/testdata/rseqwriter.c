// A writer for rseq shards, as generated code does it (protocol.go, R1 to R5 and L).
//
//	rseqwriter THREADS ATTEMPTS     the ring is file descriptor 3
//
// Every thread makes ATTEMPTS attempts under event number THREAD. Even threads are bound
// to one CPU, odd ones move from CPU to CPU. A timer sends each thread signals, whose
// handler writes under event THREADS + THREAD; so it interrupts the thread anywhere, in
// sections too. At the end it prints a line "EVENT ATTEMPTS" for every event.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HDR_EVENTS 3
#define HDR_DATA 4
#define HDR_STRIDE 5
#define UNITS 6 // of a record: two header words and four more

static char *shards;
static uint64_t stride, units, data_off;
static int nthreads;
static long attempts;
static pthread_barrier_t start;

struct self {
	int number;
	uint64_t seq, handled;
};
static __thread struct self *self;

struct write {
	uint64_t w0, seq, lost_off;
};

// record makes one attempt. Every path that leaves a section does so by its commit
// instruction, the last one of the section.
static void record(const struct write *w)
{
	struct rseq *rs = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
	__asm__ volatile(
		".pushsection __rseq_cs, \"aw\"\n"
		".balign 32\n"
		"10: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n"
		".balign 32\n"
		"11: .long 0, 0\n .quad 5f, 6f - 5f, 7f\n"
		".popsection\n"

		"3:\n"
		"lea 10b(%%rip), %%rax\n"
		"mov %%rax, %c[cs](%[rs])\n"
		"1:\n"
		"mov %c[cpu](%[rs]), %%r8d\n"
		"imul %[stride], %%r8\n"
		"add %[shards], %%r8\n"
		"mov (%%r8), %%r9\n" // R1
		"lea %c[n](%%r9), %%rax\n" // R2
		"sub 64(%%r8), %%rax\n"
		"cmp %[units], %%rax\n"
		"ja 9f\n"
		"rdtsc\n" // R3
		"shl $32, %%rdx\n"
		"or %%rdx, %%rax\n"
		"mov %[units], %%r10\n"
		"dec %%r10\n"
		"and %%r9, %%r10\n"
		"lea (%%r8, %%r10, 8), %%r10\n"
		"add %[data], %%r10\n"
		"mov %%rax, 8(%%r10)\n" // R4
		"mov 8(%[w]), %%rdx\n"
		"mov %%rdx, 16(%%r10)\n"
		"not %%rdx\n"
		"mov %%rdx, 24(%%r10)\n"
		"mov 8(%[w]), %%rdx\n"
		"mov %%rdx, 32(%%r10)\n"
		"mov %%rax, 40(%%r10)\n"
		"mov (%[w]), %%rdx\n"
		"mov %%rdx, (%%r10)\n"
		"lea %c[n](%%r9), %%rax\n"
		"mov %%rax, (%%r8)\n" // R5
		"2:\n"
		"jmp 8f\n"

		"9:\n" // L
		"lea 11b(%%rip), %%rax\n"
		"mov %%rax, %c[cs](%[rs])\n"
		"5:\n"
		"mov %c[cpu](%[rs]), %%r8d\n"
		"imul %[stride], %%r8\n"
		"add %[shards], %%r8\n"
		"add 16(%[w]), %%r8\n"
		"incq (%%r8)\n"
		"6:\n"
		"jmp 8f\n"

		// Behind an undefined instruction's opcode, the signature that the
		// kernel wants before an abort address.
		".byte 0x0f, 0xb9, 0x3d\n .long %c[sig]\n"
		"4: jmp 3b\n"
		".byte 0x0f, 0xb9, 0x3d\n .long %c[sig]\n"
		"7: jmp 9b\n"
		"8:\n"
		:
		: [rs] "r"(rs), [w] "r"(w), [cs] "i"(offsetof(struct rseq, rseq_cs)),
		  [cpu] "i"(offsetof(struct rseq, cpu_id)), [n] "i"(UNITS),
		  [sig] "i"(RSEQ_SIG), [stride] "m"(stride), [shards] "m"(shards),
		  [units] "m"(units), [data] "m"(data_off)
		: "rax", "rdx", "r8", "r9", "r10", "cc", "memory");
}

static void attempt(int event, uint64_t seq)
{
	struct write w = {
		.w0 = UNITS | (uint64_t)event << 12 | (uint64_t)(1000 + event) << 32,
		.seq = seq,
		.lost_off = 4096 + event * 32 + 8,
	};
	record(&w);
}

static void handler(int sig)
{
	if (self)
		attempt(nthreads + self->number, self->handled++);
}

static void bind_to(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

static timer_t start_timer(void)
{
	struct sigevent ev = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
	struct itimerspec every = {{0, 50000}, {0, 50000}};
	timer_t timer;
	ev._sigev_un._tid = syscall(SYS_gettid);
	if (timer_create(CLOCK_MONOTONIC, &ev, &timer) || timer_settime(timer, 0, &every, NULL)) {
		perror("timer");
		exit(1);
	}
	return timer;
}

static void *thread(void *arg)
{
	struct self *s = arg;
	int cpus = sysconf(_SC_NPROCESSORS_ONLN);
	bind_to(s->number / 2 % cpus);
	self = s;
	timer_t timer = start_timer();
	pthread_barrier_wait(&start);
	for (; s->seq < (uint64_t)attempts; s->seq++) {
		if (s->number % 2 && s->seq % 512 == 0)
			bind_to(s->seq / 512 % cpus);
		attempt(s->number, s->seq);
	}
	timer_delete(timer);
	self = NULL;
	return NULL;
}

static int map_ring(void)
{
	uint64_t *hdr = mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3, 0);
	if (hdr == MAP_FAILED)
		return -1;
	stride = hdr[HDR_STRIDE];
	units = hdr[HDR_DATA] / 8;
	data_off = 4096 + ((hdr[HDR_EVENTS] * 32 + 4095) & ~4095ul);
	size_t size = 4096 + 2 * hdr[2] * stride;
	char *ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (ring == MAP_FAILED)
		return -1;
	shards = ring + 4096;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 3 || map_ring() || !__rseq_size) {
		fprintf(stderr, "rseqwriter: no ring, or this C library registers no rseq (glibc 2.35 and later do)\n");
		return 1;
	}
	nthreads = atoi(argv[1]);
	attempts = atol(argv[2]);
	struct sigaction act = {.sa_handler = handler, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &act, NULL);
	pthread_barrier_init(&start, NULL, nthreads);
	pthread_t ids[nthreads];
	struct self selves[nthreads];
	for (int i = 0; i < nthreads; i++) {
		selves[i] = (struct self){.number = i};
		pthread_create(&ids[i], NULL, thread, &selves[i]);
	}
	for (int i = 0; i < nthreads; i++)
		pthread_join(ids[i], NULL);
	for (int i = 0; i < nthreads; i++)
		printf("%d %lu\n%d %lu\n", i, selves[i].seq, nthreads + i, selves[i].handled);
	return 0;
}
