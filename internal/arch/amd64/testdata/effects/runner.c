/*
 * runner executes single instructions from given register states.
 *
 * It reads struct in from standard input and answers each with a struct out. An
 * instruction runs at CODE with a stub behind it that saves the registers (path 0)
 * and a second stub at CODE + ELSEWHERE for branches (path 1). Memory at DATA and
 * the vector registers start out the same in every run. A signal ends a run.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <unistd.h>
#include <cpuid.h>

#define DATA 0x10000000ul
#define DATA_SIZE 0x2000
#define CODE 0x70000000ul
#define ELSEWHERE 0x60

struct in {
	uint8_t code[16];
	uint64_t len;
	uint64_t regs[16];
	uint64_t flags;
	uint64_t other;		/* 1: other bytes at DATA */
};

struct out {
	uint64_t regs[16];
	uint64_t flags;
	uint64_t memory;	/* hash of the bytes at DATA */
	uint64_t wrote;		/* 1: some of them changed */
	uint64_t vector;	/* hash of x87, SSE, AVX and AVX-512 state */
	uint64_t signal;
	uint64_t path;
};

struct in now;
struct out got;
uint64_t own_rsp, code_addr = CODE, components;
uint8_t vector_in[4096] __attribute__((aligned(64)));
uint8_t vector_out[4096] __attribute__((aligned(64)));

void run(void);
void save0(void);
void save1(void);

__asm__(
	".text\n"
	"run:\n"
	"	push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	"	mov %rsp, own_rsp(%rip)\n"
	"	mov components(%rip), %eax\n xor %edx, %edx\n"
	"	xrstor64 vector_in(%rip)\n"
	"	pushq now+152(%rip)\n popfq\n"
	"	mov now+24(%rip), %rax\n mov now+32(%rip), %rcx\n"
	"	mov now+40(%rip), %rdx\n mov now+48(%rip), %rbx\n"
	"	mov now+56(%rip), %rsp\n mov now+64(%rip), %rbp\n"
	"	mov now+72(%rip), %rsi\n mov now+80(%rip), %rdi\n"
	"	mov now+88(%rip), %r8\n mov now+96(%rip), %r9\n"
	"	mov now+104(%rip), %r10\n mov now+112(%rip), %r11\n"
	"	mov now+120(%rip), %r12\n mov now+128(%rip), %r13\n"
	"	mov now+136(%rip), %r14\n mov now+144(%rip), %r15\n"
	"	jmp *code_addr(%rip)\n"
	"save1:\n"
	"	movq $1, got+168(%rip)\n"
	"	jmp 1f\n"
	"save0:\n"
	"	movq $0, got+168(%rip)\n"
	"1:	mov %rax, got(%rip)\n mov %rcx, got+8(%rip)\n"
	"	mov %rdx, got+16(%rip)\n mov %rbx, got+24(%rip)\n"
	"	mov %rsp, got+32(%rip)\n mov %rbp, got+40(%rip)\n"
	"	mov %rsi, got+48(%rip)\n mov %rdi, got+56(%rip)\n"
	"	mov %r8, got+64(%rip)\n mov %r9, got+72(%rip)\n"
	"	mov %r10, got+80(%rip)\n mov %r11, got+88(%rip)\n"
	"	mov %r12, got+96(%rip)\n mov %r13, got+104(%rip)\n"
	"	mov %r14, got+112(%rip)\n mov %r15, got+120(%rip)\n"
	"	mov own_rsp(%rip), %rsp\n"
	"	pushfq\n popq got+128(%rip)\n"
	"	pushq $2\n popfq\n"
	"	mov components(%rip), %eax\n xor %edx, %edx\n"
	"	xsave64 vector_out(%rip)\n"
	"	fninit\n"
	"	pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
	"	ret\n");

static sigjmp_buf back;

static void on_signal(int sig)
{
	/* a popf may have set AC: no unaligned access until it is off */
	__asm__ volatile("pushq $2\n popfq" ::: "cc", "memory");
	siglongjmp(back, sig);
}

static uint64_t hash(uint64_t h, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t v;
		memcpy(&v, p + i, 8);
		h = (h ^ v) * 0x9e3779b97f4a7c15ul;
		h ^= h >> 29;
	}
	return h;
}

static uint64_t random64(void)
{
	static uint64_t s = 88172645463325252ul;
	s ^= s << 13;
	s ^= s >> 7;
	s ^= s << 17;
	return s;
}

static void *map(uint64_t at, size_t n, int prot)
{
	void *p = mmap((void *)at, n, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (p != (void *)at) {
		perror("mmap");
		exit(1);
	}
	return p;
}

static void catch_signals(void)
{
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP };
	static char stack[1 << 16];
	stack_t ss = { .ss_sp = stack, .ss_size = sizeof stack };
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_NODEFER };

	sigaltstack(&ss, 0);
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
		sigaction(sigs[i], &sa, 0);
}

/* Register 2 holds small numbers: it is the index of gathers. */
static void fill_index(void)
{
	uint32_t a, b, c, d;
	memset(vector_in + 160 + 2 * 16, 0, 16);
	vector_in[160 + 2 * 16] = 3;
	vector_in[160 + 2 * 16 + 8] = 8;
	memset(vector_in + 576 + 2 * 16, 0, 16);
	if (components & 0x40) {
		__cpuid_count(13, 6, a, b, c, d);
		memset(vector_in + b + 2 * 32, 0, 32);
	}
}

/* Vector state: quiet random data in all components that the system has on. */
static void fill_vectors(void)
{
	uint32_t lo, hi;
	__asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	components = lo & 0xe7;	/* x87, SSE, AVX, three of AVX-512 */
	for (int i = 0; i < 4096; i++)
		vector_in[i] = random64();
	memset(vector_in, 0, 32);
	memset(vector_in + 512, 0, 64);
	vector_in[0] = 0x7f;		/* x87 control word 037f: all masked */
	vector_in[1] = 0x03;
	vector_in[4] = 0xff;		/* all registers hold something */
	vector_in[24] = 0x80;		/* mxcsr 1f80 */
	vector_in[25] = 0x1f;
	memcpy(vector_in + 512, &components, 8);
	fill_index();
}

static void jump_to(uint8_t *at, void (*f)(void))
{
	memcpy(at, "\xff\x25\0\0\0\0", 6);
	memcpy(at + 6, &f, 8);
}

/* Random bytes, with a valid mxcsr where ldmxcsr and fxrstor of a multiple of 64 look. */
static void fill_data(uint8_t *p)
{
	for (int i = 0; i < DATA_SIZE; i++)
		p[i] = random64();
	for (int i = 0; i < DATA_SIZE; i += 64) {
		memset(p + i + 2, 0, 2);
		memset(p + i + 26, 0, 2);
	}
}

int main(int argc, char **argv)
{
	static uint8_t pristine[2][DATA_SIZE];

	if (argc == 1) {	/* the same addresses in every process, and the same CPU: each has a GDT of its own */
		cpu_set_t all, one;
		int cpu = 0;

		sched_getaffinity(0, sizeof(all), &all);
		while (!CPU_ISSET(cpu, &all))
			cpu++;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		personality(ADDR_NO_RANDOMIZE);
		execl(argv[0], argv[0], "fixed", (char *)0);
		perror(argv[0]);
		return 1;
	}
	uint8_t *data = map(DATA, DATA_SIZE, PROT_READ | PROT_WRITE);
	uint8_t *code = map(CODE, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);

	fill_data(pristine[0]);
	fill_data(pristine[1]);
	fill_vectors();
	catch_signals();
	jump_to(code + ELSEWHERE, save1);
	while (fread(&now, sizeof now, 1, stdin) == 1) {
		memcpy(data, pristine[now.other & 1], DATA_SIZE);
		memset(vector_out, 0, sizeof vector_out);
		memcpy(code, now.code, now.len);
		jump_to(code + now.len, save0);
		memset(&got, 0, sizeof got);
		int sig = sigsetjmp(back, 0);
		if (sig == 0)
			run();
		else
			memset(&got, 0, sizeof got);
		got.signal = sig;
		got.memory = hash(0, data, DATA_SIZE);
		got.wrote = memcmp(data, pristine[now.other & 1], DATA_SIZE) != 0;
		if (sig == 0) {
			/* without the x87 instruction and data pointers, and the header */
			uint64_t h = hash(0, vector_out, 8);
			h = hash(h, vector_out + 24, 512 - 24);
			got.vector = hash(h, vector_out + 576, 4096 - 576);
		}
		if (fwrite(&got, sizeof got, 1, stdout) != 1)
			return 1;
	}
	return fflush(stdout) != 0;
}
