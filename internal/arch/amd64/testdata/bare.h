/*
 * What the test programs without a C library share: system calls, memory, the frame of a
 * signal, and the vector registers in it. Nothing here depends on %fs.
 */
#include <stdint.h>
#include <stddef.h>

typedef uint64_t u64;
typedef uint8_t u8;

#define NSIG_WORDS 1
#define SA_SIGINFO 4
#define SA_RESTORER 0x04000000
#define SA_ONSTACK 0x08000000

struct kernel_sigaction {
	void (*handler)(int, void *, void *);
	u64 flags;
	void (*restorer)(void);
	u64 mask[NSIG_WORDS];
};

struct stack { void *sp; int flags; u64 size; };

/* ucontext of the kernel, arch/x86/include/uapi/asm/sigcontext.h */
struct ucontext {
	u64 flags;
	struct ucontext *link;
	struct stack stack;
	u64 r8, r9, r10, r11, r12, r13, r14, r15;
	u64 rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp;
	u64 rip, eflags;
	uint16_t cs, gs, fs, ss;
	u64 err, trapno, oldmask, cr2;
	u8 *fpstate;
};

struct siginfo { int signo, errno_, code, pad; u64 addr; };

static long sys(long n, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	long ret;
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(ret)
		: "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		: "rcx", "r11", "memory");
	return ret;
}

static void quit(int code)
{
	for (;;)
		sys(231, code, 0, 0, 0, 0, 0);
}

static void *map(u64 addr, u64 len, int prot, int flags, int fd)
{
	long p = sys(9, addr, len, prot, flags, fd, 0);
	if (p < 0 && p > -4096)
		quit(10);
	return (void *)p;
}

static void fill(u8 *p, u8 v, u64 n)
{
	__asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(v) : "memory");
}

static void copy(void *to, const void *from, u64 n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

static u64 rnd(u64 *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static u64 mix(u64 h, const void *p, u64 n)
{
	const u64 *w = p;
	for (u64 i = 0; i < n / 8; i++)
		h = (h ^ w[i]) * 0x9e3779b97f4a7c15ull + (h >> 29);
	return h;
}

/* Vector components of a standard-format XSAVE area: SDM vol. 1 section 13.4. */
static const int components[] = { 2, 5, 6, 7 };
static struct { unsigned off, len; } place[8];
static u64 have;

static void find_components(u64 features)
{
	for (unsigned i = 0; i < sizeof components / sizeof *components; i++) {
		int c = components[i];
		unsigned a = 0xd, b, n = c, d;
		if (!(features >> c & 1))
			continue;
		__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(n), "=d"(d));
		place[c].off = b;
		place[c].len = a;
		have |= 1ull << c;
	}
}

static void random_words(u8 *p, unsigned len, u64 *s, int style)
{
	u64 *w = (u64 *)p;
	for (unsigned i = 0; i < len / 8; i++) {
		u64 v = rnd(s);
		w[i] = style == 1 ? 0 : style == 2 ? v & 0x3f0000003full : v;
	}
}

static void fill_vectors(u8 *fp, u64 seed)
{
	u64 s = seed ^ 0x5555555555555555ull;
	int style = rnd(&s) >> 32 & 3;
	fill(fp, 0, 416);
	fp[0] = 0x7f, fp[1] = 0x03;      /* FCW */
	fp[4] = rnd(&s) >> 40 & 1 ? 0xff : 0; /* FTW, abridged */
	fp[24] = 0x80, fp[25] = 0x1f;    /* MXCSR */
	fp[28] = 0xff, fp[29] = 0xff, fp[30] = 2;
	for (int i = 0; i < 8; i++) {
		u8 *st = fp + 32 + 16 * i;
		*(u64 *)st = rnd(&s) | 1ull << 63;
		*(uint16_t *)(st + 8) = 0x3ff8 + (rnd(&s) & 15);
	}
	random_words(fp + 160, 256, &s, style);
	for (int c = 2; c < 8; c++)
		if (have >> c & 1)
			random_words(fp + place[c].off, place[c].len, &s, style);
	*(u64 *)(fp + 512) = 3 | have;
}

static u64 *reg(struct ucontext *uc, int i)
{
	switch (i) {
	case 0: return &uc->rax;
	case 1: return &uc->rcx;
	case 2: return &uc->rdx;
	case 3: return &uc->rbx;
	case 4: return &uc->rsp;
	case 5: return &uc->rbp;
	case 6: return &uc->rsi;
	case 7: return &uc->rdi;
	}
	return &uc->r8 + (i - 8);
}
