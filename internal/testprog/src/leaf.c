// Keeps values alive in every caller-saved register across calls of a function, which gcc
// does when it has seen that the function does not write them (-fipa-ra).
// build: -fipa-ra -fomit-frame-pointer
//
//	leaf [THREADS [PAUSE]]     commands: count, quit
//
// Each thread pauses for PAUSE microseconds between rounds; without it does not.
// Each thread mixes fourteen values with a call of leaf in every step and compares the
// result with the same steps without calls: all nine caller-saved registers hold values across
// the call. holding, in assembly, does the same whatever the compiler thinks of. -DCLOBBER=rdx makes leaf destroy
// one register behind the compiler's back: if it holds a value there, "bad" rises.
#include "prog.h"

#define STEPS 256

struct tally {
	uint64_t calls, rounds, bad, sum;
	char pad[32];
};

uint64_t leaf_hits; // not exact with several threads: it only makes leaf do something
static struct tally tallies[16];
static volatile int stop;
static useconds_t pause_us;

#define STR2(x) #x
#define STR(x) STR2(x)

// leaf writes no register but the flags.
NOINLINE static void leaf(void) {
	leaf_hits += 1;
#ifdef CLOBBER
	__asm__ volatile("lea 0x1234567(%" STR(CLOBBER) ", %" STR(CLOBBER) ", 4), %" STR(CLOBBER));
#endif
}

// MIX needs no register beside its operands.
#define MIX(x, y) ((x) ^= (y), (x) = (x) << 7 | (x) >> 57)

#define ROUND(name, call)                                       \
	NOINLINE static uint64_t name(uint64_t s) {                                               \
		uint64_t a = s, b = s * 3, c = s * 5, d = s * 7, e = s * 11, f = s * 13, g = s * 17; \
		uint64_t h = s * 19, i = s * 23, j = s * 29, k = s * 31, l = s * 37, m = s * 41, o = s * 43; \
		for (uint32_t n = STEPS; n; n--) {                                                \
			call;                                                                     \
			MIX(a, b); MIX(b, c); MIX(c, d); MIX(d, e); MIX(e, f); MIX(f, g); MIX(g, h); \
			MIX(h, i); MIX(i, j); MIX(j, k); MIX(k, l); MIX(l, m); MIX(m, o); MIX(o, a); \
		}                                                                                 \
		return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h ^ i ^ j ^ k ^ l ^ m ^ o; \
	}

ROUND(calling, leaf())
ROUND(quiet, __asm__ volatile(""))

// holding returns how many of the nine caller-saved registers a call of leaf changed.
uint64_t holding(void);
__asm__(".text\n.globl holding\n.type holding, @function\nholding:\n"
	"mov $0x10101010, %rax\n mov $0x11111111, %rcx\n mov $0x12121212, %rdx\n"
	"mov $0x13131313, %rsi\n mov $0x14141414, %rdi\n mov $0x15151515, %r8\n"
	"mov $0x16161616, %r9\n mov $0x17171717, %r10\n mov $0x18181818, %r11\n"
	"call leaf\n"
	"sub $0x10101010, %rax\n sub $0x11111111, %rcx\n sub $0x12121212, %rdx\n"
	"sub $0x13131313, %rsi\n sub $0x14141414, %rdi\n sub $0x15151515, %r8\n"
	"sub $0x16161616, %r9\n sub $0x17171717, %r10\n sub $0x18181818, %r11\n"
	"neg %rax\n sbb %rax, %rax\n neg %rcx\n sbb $0, %rax\n neg %rdx\n sbb $0, %rax\n"
	"neg %rsi\n sbb $0, %rax\n neg %rdi\n sbb $0, %rax\n neg %r8\n sbb $0, %rax\n"
	"neg %r9\n sbb $0, %rax\n neg %r10\n sbb $0, %rax\n neg %r11\n sbb $0, %rax\n"
	"neg %rax\n ret\n.size holding, .-holding\n");

static void *work(void *arg) {
	struct tally *t = arg;
	for (uint64_t s = 1; !stop; s++) {
		uint64_t got = calling(s), want = quiet(s);
		t->bad += (got != want) + holding();
		t->calls += STEPS + 1;
		t->rounds++;
		t->sum += got;
		if (pause_us)
			usleep(pause_us);
	}
	return NULL;
}

static void report(int n) {
	struct tally s = {0};
	for (int i = 0; i < n; i++) {
		s.calls += tallies[i].calls;
		s.rounds += tallies[i].rounds;
		s.bad += tallies[i].bad;
		s.sum += tallies[i].sum;
	}
	say("{\"leaf\":%" PRIu64 ",\"rounds\":%" PRIu64 ",\"bad\":%" PRIu64 ",\"sum\":%" PRIu64 "}", s.calls, s.rounds,
	    s.bad, s.sum);
}

int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 1;
	pause_us = argc > 2 ? atoi(argv[2]) : 0;
	pthread_t t[16];
	char line[256];
	if (n < 1 || n > 16)
		return 2;
	for (int i = 0; i < n; i++)
		t[i] = start(work, &tallies[i]);
	say("ready");
	while (command(line) && !is(line, "quit"))
		report(n);
	stop = 1;
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	report(n);
	return 0;
}
