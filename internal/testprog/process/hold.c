// Two threads that hold known values in every register, one in a loop in user mode and one
// in a loop of system calls, and compare all of them each time they leave it. To each line the
// program answers "ok ROUNDS ROUNDS" or "bad WHAT", after one more round of each.
// Held: general registers, arithmetic flags and direction flag, x87 stack, MXCSR, ymm or zmm and
// mask registers, and the 128 bytes of the red zone.
#include "common.h"

struct state {
	uint64_t r[16]; // rax rcx rdx rbx - rbp rsi rdi r8..r15; rsp is not used
	uint64_t flags;
	uint64_t red[16];
	uint64_t k[8];
	double x87[4];
	uint32_t mxcsr, pad[7];
	uint8_t z[32][64] __attribute__((aligned(64)));
};

enum { FLAGS = 0x8d5 | 0x400 }; // OF DF SF ZF AF PF CF

// hold loads in, loops until *stop is not 0, and stores what is there then in out. The loop
// changes rcx alone; with sys != 0 it makes system call sys(0, ...) each time, which
// changes rax, rcx and r11 and nothing else.
void hold(const struct state *in, struct state *out, const uint64_t *stop, long sys, int avx512);

static atomic_int bad;
static char what[256];

static void differ(const char *s, int i, uint64_t got, uint64_t want) {
	if (atomic_fetch_add(&bad, 1) == 0)
		snprintf(what, sizeof what, "%s %d: %#lx, want %#lx", s, i, got, want);
}

static void compare(const struct state *a, const struct state *b, int sys, int avx512) {
	for (int i = 0; i < 16; i++)
		if (i != 1 && i != 4 && !(sys && (i == 0 || i == 11)) && a->r[i] != b->r[i])
			differ("register", i, b->r[i], a->r[i]);
	if ((a->flags ^ b->flags) & FLAGS)
		differ("flags", 0, b->flags, a->flags);
	for (int i = 0; i < 16; i++)
		if (a->red[i] != b->red[i])
			differ("red zone", i, b->red[i], a->red[i]);
	for (int i = 0; i < 4; i++)
		if (a->x87[i] != b->x87[i])
			differ("x87", i, b->x87[i], a->x87[i]);
	if (a->mxcsr != b->mxcsr)
		differ("mxcsr", 0, b->mxcsr, a->mxcsr);
	for (int i = 0; avx512 && i < 8; i++)
		if (a->k[i] != b->k[i])
			differ("mask register", i, b->k[i], a->k[i]);
	for (int i = 0; i < (avx512 ? 32 : 16); i++)
		if (memcmp(a->z[i], b->z[i], avx512 ? 64 : 32))
			differ("vector", i, b->z[i][0], a->z[i][0]);
}

static struct holder {
	uint64_t stop __attribute__((aligned(64)));
	long sys;
	atomic_ulong rounds;
	uint64_t seed;
} holders[] = {{.sys = 0, .seed = 1}, {.sys = SYS_getppid, .seed = 2}, {.sys = SYS_sched_yield, .seed = 3}};

static uint64_t next(uint64_t *x) {
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

static void fill(struct state *s, uint64_t *x) {
	for (int i = 0; i < 16; i++)
		s->r[i] = next(x), s->red[i] = next(x);
	for (int i = 0; i < 8; i++)
		s->k[i] = next(x);
	for (int i = 0; i < 4; i++)
		s->x87[i] = (double)(next(x) >> 12);
	for (int i = 0; i < 32; i++)
		for (int j = 0; j < 64; j++)
			s->z[i][j] = next(x);
	s->flags = (next(x) & FLAGS) | 2;
	s->mxcsr = 0x1f80 | (next(x) & 0x6000);
}

static void *run(void *arg) {
	struct holder *h = arg;
	uint64_t x = h->seed * 0x9e3779b97f4a7c15u;
	int avx512 = __builtin_cpu_supports("avx512bw");
	for (;;) {
		struct state *in = aligned_alloc(64, sizeof *in), *out = aligned_alloc(64, sizeof *out);
		fill(in, &x);
		memset(out, 0, sizeof *out);
		hold(in, out, &h->stop, h->sys, avx512);
		h->stop = 0;
		compare(in, out, h->sys != 0, avx512);
		free(in), free(out);
		atomic_fetch_add(&h->rounds, 1);
	}
	return NULL;
}

int main(void) {
	enum { N = sizeof holders / sizeof holders[0] };
	for (int i = 0; i < N; i++)
		go(run, &holders[i]);
	say("ready");
	char b[64];
	while (line(b, sizeof b)) {
		for (int i = 0; i < N; i++) {
			unsigned long before = holders[i].rounds;
			__atomic_store_n(&holders[i].stop, 1, __ATOMIC_SEQ_CST);
			while (holders[i].rounds == before)
				usleep(100);
		}
		if (bad)
			say("bad %s", what);
		else
			say("ok %lu %lu", holders[0].rounds, holders[1].rounds);
	}
	return 0;
}

// The loads and stores. Offsets are those of struct state.
asm(R"(
	.text
	.globl hold
	.type hold, @function
hold:
	push %rbx
	push %rbp
	push %r12
	push %r13
	push %r14
	push %r15
	sub $16, %rsp
	stmxcsr 8(%rsp)
	mov %rsi, %fs:hold_out@tpoff
	mov %rdx, %fs:hold_stop@tpoff
	mov %rcx, %fs:hold_sys@tpoff
	mov %r8, %fs:hold_wide@tpoff
	# the red zone is filled below the stack pointer, where nothing is pushed any more
	mov $0, %ecx
1:	mov 136(%rdi,%rcx,8), %rax
	mov %rax, -128(%rsp,%rcx,8)
	inc %ecx
	cmp $16, %ecx
	jne 1b
	fninit
	fldl 328(%rdi)
	fldl 336(%rdi)
	fldl 344(%rdi)
	fldl 352(%rdi)
	ldmxcsr 360(%rdi)
	test %r8, %r8
	jz 2f
	.irp n, 0,1,2,3,4,5,6,7
	kmovq 264+8*\n(%rdi), %k\n
	.endr
	.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
	vmovdqu64 448+64*\n(%rdi), %zmm\n
	.endr
	jmp 3f
2:
	.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
	vmovdqu 448+64*\n(%rdi), %ymm\n
	.endr
3:	mov 128(%rdi), %rax
	lea -128(%rsp), %rsp
	push %rax
	popf
	lea 128(%rsp), %rsp
	mov 0(%rdi), %rax
	mov 16(%rdi), %rdx
	mov 24(%rdi), %rbx
	mov 40(%rdi), %rbp
	mov 48(%rdi), %rsi
	mov 64(%rdi), %r8
	mov 72(%rdi), %r9
	mov 80(%rdi), %r10
	mov 88(%rdi), %r11
	mov 96(%rdi), %r12
	mov 104(%rdi), %r13
	mov 112(%rdi), %r14
	mov 120(%rdi), %r15
	mov 56(%rdi), %rdi
	mov %fs:hold_sys@tpoff, %rcx
	jrcxz 5f
4:	mov %fs:hold_sys@tpoff, %rax
	syscall
	mov %fs:hold_stop@tpoff, %rcx
	mov (%rcx), %rcx
	jrcxz 4b
	jmp 6f
5:	mov %fs:hold_stop@tpoff, %rcx
	mov (%rcx), %rcx
	jrcxz 5b
6:	mov %fs:hold_out@tpoff, %rcx
	mov %rax, 0(%rcx)
	mov %rdx, 16(%rcx)
	mov %rbx, 24(%rcx)
	mov %rbp, 40(%rcx)
	mov %rsi, 48(%rcx)
	mov %rdi, 56(%rcx)
	mov %r8, 64(%rcx)
	mov %r9, 72(%rcx)
	mov %r10, 80(%rcx)
	mov %r11, 88(%rcx)
	mov %r12, 96(%rcx)
	mov %r13, 104(%rcx)
	mov %r14, 112(%rcx)
	mov %r15, 120(%rcx)
	lea -128(%rsp), %rsp
	pushf
	pop %rax
	lea 128(%rsp), %rsp
	cld
	mov %rax, 128(%rcx)
	mov %rcx, %rdi
	mov $0, %ecx
7:	mov -128(%rsp,%rcx,8), %rax
	mov %rax, 136(%rdi,%rcx,8)
	inc %ecx
	cmp $16, %ecx
	jne 7b
	fstpl 352(%rdi)
	fstpl 344(%rdi)
	fstpl 336(%rdi)
	fstpl 328(%rdi)
	stmxcsr 360(%rdi)
	mov %fs:hold_wide@tpoff, %r8
	test %r8, %r8
	jz 8f
	.irp n, 0,1,2,3,4,5,6,7
	kmovq %k\n, 264+8*\n(%rdi)
	.endr
	.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
	vmovdqu64 %zmm\n, 448+64*\n(%rdi)
	.endr
	jmp 9f
8:
	.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
	vmovdqu %ymm\n, 448+64*\n(%rdi)
	.endr
9:	vzeroupper
	ldmxcsr 8(%rsp)
	add $16, %rsp
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbp
	pop %rbx
	ret
	.size hold, .-hold
	.section .tbss, "awT", @nobits
hold_out:	.zero 8
hold_stop:	.zero 8
hold_sys:	.zero 8
hold_wide:	.zero 8
	.text
)");
_Static_assert(__builtin_offsetof(struct state, z) == 448 && __builtin_offsetof(struct state, flags) == 128 &&
	__builtin_offsetof(struct state, red) == 136 && __builtin_offsetof(struct state, k) == 264 &&
	__builtin_offsetof(struct state, x87) == 328 && __builtin_offsetof(struct state, mxcsr) == 360, "offsets");
