// Holds values in all vector, mask and x87 registers across calls.
// build: -fno-ipa-ra
//
//	vector     commands: go N, count, quit
//
// vec_leaf(a) is called with known values in zmm0-zmm31 and k1-k7 (ymm0-ymm15 without
// AVX-512, xmm0-xmm15 without AVX), a full x87 stack, and unusual rounding in MXCSR and the
// x87 control word; afterwards all of them are compared. "level" is 512, 256 or 128.
#include "prog.h"

static uint64_t calls, bad;
static int level;

NOINLINE uint64_t vec_leaf(uint64_t a) { return a * 19 + 1; }

struct state {
	uint8_t vec[32][64];
	uint64_t k[8];
	uint8_t x87[8][10];
	uint32_t mxcsr;
	uint16_t fcw;
} __attribute__((aligned(64)));
static struct state want, got;

// call_with_L(in, out, a) loads in, calls vec_leaf(a), stores out and returns the result.
uint64_t call_with_512(const struct state *in, struct state *out, uint64_t a);
uint64_t call_with_256(const struct state *in, struct state *out, uint64_t a);
uint64_t call_with_128(const struct state *in, struct state *out, uint64_t a);

#define STR2(x) #x
#define STR(x) STR2(x)
#define K_OFF 2048
#define X87_OFF 2112
#define CSR_OFF 2192
#define FCW_OFF 2196
_Static_assert(__builtin_offsetof(struct state, k) == K_OFF && __builtin_offsetof(struct state, x87) == X87_OFF &&
	__builtin_offsetof(struct state, mxcsr) == CSR_OFF && __builtin_offsetof(struct state, fcw) == FCW_OFF, "layout");

#define REPT(n, body) ".altmacro\n.macro each i\n" body "\n.endm\n.set n, 0\n.rept " #n "\n each %n\n.set n, n+1\n.endr\n.purgem each\n.noaltmacro\n"
#define X87_LOAD "fninit\n fldcw " STR(FCW_OFF) "(%rbx)\n" REPT(8, "fldt " STR(X87_OFF) "+10*(\\i)(%rbx)")
#define X87_STORE "fnstcw " STR(FCW_OFF) "(%rbp)\n" REPT(8, "fstpt " STR(X87_OFF) "+10*(7-\\i)(%rbp)") "fninit\n"
#define FUNC(bits, load, store)                                                                                  \
	__asm__(".text\n.p2align 4\n.globl call_with_" #bits "\n.type call_with_" #bits ", @function\n"          \
		"call_with_" #bits ":\n push %rbx\n push %rbp\n sub $8, %rsp\n stmxcsr (%rsp)\n"                  \
		"mov %rdi, %rbx\n mov %rsi, %rbp\n mov %rdx, %rdi\n ldmxcsr " STR(CSR_OFF) "(%rbx)\n"             \
		X87_LOAD load "call vec_leaf\n" store X87_STORE                                                   \
		"stmxcsr " STR(CSR_OFF) "(%rbp)\n ldmxcsr (%rsp)\n add $8, %rsp\n pop %rbp\n pop %rbx\n"          \
		"ret\n.size call_with_" #bits ", .-call_with_" #bits "\n")
FUNC(512, REPT(32, "vmovdqu64 64*\\i(%rbx), %zmm\\i") REPT(8, "kmovq " STR(K_OFF) "+8*\\i(%rbx), %k\\i"),
	REPT(32, "vmovdqu64 %zmm\\i, 64*\\i(%rbp)") REPT(8, "kmovq %k\\i, " STR(K_OFF) "+8*\\i(%rbp)") "vzeroupper\n");
FUNC(256, REPT(16, "vmovdqu 64*\\i(%rbx), %ymm\\i"), REPT(16, "vmovdqu %ymm\\i, 64*\\i(%rbp)") "vzeroupper\n");
FUNC(128, REPT(16, "movdqu 64*\\i(%rbx), %xmm\\i"), REPT(16, "movdqu %xmm\\i, 64*\\i(%rbp)"));

static void fill(uint64_t seed) {
	int vecs = level == 512 ? 32 : 16;
	memset(&want, 0, sizeof want);
	memset(&got, 0, sizeof got);
	for (int v = 0; v < vecs; v++)
		for (int b = 0; b < level / 8; b++)
			want.vec[v][b] = (uint8_t)(seed * 31 + (uint64_t)(v * 64 + b) * 7 + 1);
	for (int k = 0; level == 512 && k < 8; k++)
		want.k[k] = seed * 0x9e3779b97f4a7c15 + (uint64_t)k;
	for (int i = 0; i < 8; i++) {
		long double d = (long double)seed + i + 0.25L;
		memcpy(want.x87[i], &d, 10);
	}
	want.mxcsr = 0x1f80 | (uint32_t)(seed % 4) << 13;
	want.fcw = (uint16_t)(0x37f | (seed % 4) << 10);
}

static void once(uint64_t i) {
	uint64_t r;
	fill(i);
	if (level == 512)
		r = call_with_512(&want, &got, i);
	else if (level == 256)
		r = call_with_256(&want, &got, i);
	else
		r = call_with_128(&want, &got, i);
	calls++;
	bad += r != i * 19 + 1 || memcmp(&want, &got, sizeof want) != 0;
}

static void report(void) {
	say("{\"vec_leaf\":%" PRIu64 ",\"level\":%d,\"bad\":%" PRIu64 "}", calls, level, bad);
}

int main(void) {
	char line[256];
	level = __builtin_cpu_supports("avx512bw") ? 512 : __builtin_cpu_supports("avx2") ? 256 : 128;
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				once(i);
		report();
	}
	report();
	return 0;
}
