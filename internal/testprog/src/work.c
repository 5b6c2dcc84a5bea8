// Calls functions with different first instructions and argument types from many threads.
// build: -fcf-protection=branch -mmanual-endbr -fno-optimize-sibling-calls -fno-ipa-ra
//
//	work [THREADS [CALLS]]   commands: go N (every thread calls every function N times), count, quit
//
// With CALLS it does "go CALLS" once before it reads commands, without an answer. SIGUSR1
// prints the counts as "count" does. Every call's result is compared with what it must be:
// "bad" counts those that differ.
//
// In "go N" the call number i (from 0) of thread t (from 0) passes v = t<<32 | i:
//
//	f_lea(v, v+1)             lea first           returns 2v+1
//	f_endbr(v, v+1)           endbr64 first       returns v^(v+1)
//	f_push(v, v+1)            push first          returns f_lea(v, 1) + v+1, which is 2v+2
//	f_nop5(v, v+1)            5-byte nop first    returns v
//	f_patch(v, v+1)           five 1-byte nops    returns v+1
//	f_ret()                   ret only
//	f_ptr(&struct rec)        rec.id = v, rec.name = "rec-t-i"    returns v
//	f_str("call-t-i", i&15)   returns the string's length + (i&15)
//	f_six(v, v+1 … v+5)       returns the sum
//	f_small(s8, u16, s32, v)  -(i&127), i&0xffff, -i, v     returns the sum
//	f_pair({v, v+1})          struct in two registers       returns {v+1, v} likewise
//	f_big({v, … v+5})         struct on the stack           returns the sum
//	f_double(i+0.5, 2.0)      returns the product
#include "prog.h"

#define MAX_THREADS 64

struct rec {
	uint64_t id;
	char *name;
	int32_t small;
	char text[20];
};
struct pair {
	uint64_t a, b;
};
struct big {
	uint64_t v[6];
};

enum { LEA, ENDBR, PUSH, NOP5, PATCH, RET, PTR, STR, SIX, SMALL, PAIR, BIG, DOUBLE, KINDS };
static const char *const names[KINDS] = {"f_lea", "f_endbr", "f_push", "f_nop5", "f_patch", "f_ret", "f_ptr",
	"f_str", "f_six", "f_small", "f_pair", "f_big", "f_double"};

static struct {
	uint64_t calls[KINDS], bad, pad[2];
} tallies[MAX_THREADS];

NOINLINE uint64_t f_lea(uint64_t a, uint64_t b) { return a + b; }
NOINLINE __attribute__((cf_check)) uint64_t f_endbr(uint64_t a, uint64_t b) { return a ^ b; }
NOINLINE uint64_t f_push(uint64_t a, uint64_t b) { return f_lea(a, 1) + b; }
NOINLINE __attribute__((patchable_function_entry(5))) uint64_t f_patch(uint64_t a, uint64_t b) {
	(void)a;
	return b;
}
NOINLINE uint64_t f_ptr(const struct rec *r) { return r->id; }
NOINLINE uint64_t f_str(const char *s, unsigned n) { return strlen(s) + n; }
NOINLINE uint64_t f_six(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
	return a + b + c + d + e + f;
}
NOINLINE int64_t f_small(signed char a, unsigned short b, int c, int64_t d) { return a + b + c + d; }
NOINLINE struct pair f_pair(struct pair p) { return (struct pair){p.b, p.a}; }
NOINLINE uint64_t f_big(struct big b) { return b.v[0] + b.v[1] + b.v[2] + b.v[3] + b.v[4] + b.v[5]; }
NOINLINE double f_double(double a, double b) { return a * b; }

uint64_t f_nop5(uint64_t a, uint64_t b);
void f_ret(void);
__asm__(".text\n.p2align 4\n.globl f_nop5\n.type f_nop5, @function\nf_nop5:\n"
	".byte 0x0f, 0x1f, 0x44, 0, 0\n mov %rdi, %rax\n ret\n.size f_nop5, .-f_nop5\n"
	".p2align 4\n.globl f_ret\n.type f_ret, @function\nf_ret:\n ret\n.size f_ret, .-f_ret\n.p2align 4\n");

static void step(unsigned t, uint64_t i) {
	uint64_t v = (uint64_t)t << 32 | i, bad = 0;
	char text[48], name[48];
	snprintf(text, sizeof text, "call-%u-%" PRIu64, t, i);
	snprintf(name, sizeof name, "rec-%u-%" PRIu64, t, i);
	struct rec r = {v, name, -(int32_t)i, "inside the record"};
	bad += f_lea(v, v + 1) != 2 * v + 1;
	bad += f_endbr(v, v + 1) != (v ^ (v + 1));
	bad += f_push(v, v + 1) != 2 * v + 2;
	bad += f_nop5(v, v + 1) != v;
	bad += f_patch(v, v + 1) != v + 1;
	f_ret();
	bad += f_ptr(&r) != v;
	bad += f_str(text, i & 15) != strlen(text) + (i & 15);
	bad += f_six(v, v + 1, v + 2, v + 3, v + 4, v + 5) != 6 * v + 15;
	int64_t small = -(int64_t)(i & 127) + (int64_t)(i & 0xffff) - (int64_t)i + (int64_t)v;
	bad += f_small(-(i & 127), i & 0xffff, -(int)i, (int64_t)v) != small;
	struct pair p = f_pair((struct pair){v, v + 1});
	bad += p.a != v + 1 || p.b != v;
	bad += f_big((struct big){{v, v + 1, v + 2, v + 3, v + 4, v + 5}}) != 6 * v + 15;
	bad += f_double((double)i + 0.5, 2.0) != 2 * (double)i + 1;
	for (int k = 0; k < KINDS; k++)
		tallies[t].calls[k] += 1;
	tallies[t].calls[LEA] += 1; // from f_push
	tallies[t].bad += bad;
}

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t round_no, round_calls;
static int busy;

static void *work(void *arg) {
	unsigned t = (unsigned)(uintptr_t)arg;
	for (uint64_t seen = 0;;) {
		pthread_mutex_lock(&mu);
		while (round_no == seen)
			pthread_cond_wait(&changed, &mu);
		seen = round_no;
		uint64_t n = round_calls;
		pthread_mutex_unlock(&mu);
		for (uint64_t i = 0; i < n; i++)
			step(t, i);
		pthread_mutex_lock(&mu);
		busy--;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&mu);
	}
	return NULL;
}

static void go(int threads, uint64_t n) {
	pthread_mutex_lock(&mu);
	round_no++;
	round_calls = n;
	busy = threads;
	pthread_cond_broadcast(&changed);
	while (busy)
		pthread_cond_wait(&changed, &mu);
	pthread_mutex_unlock(&mu);
}

// report writes the counts with write alone: it is called from a signal handler too.
static void report(void) {
	char buf[1024];
	int n = 0;
	uint64_t bad = 0;
	for (int k = 0; k < KINDS; k++) {
		uint64_t sum = 0;
		for (int t = 0; t < MAX_THREADS; t++)
			sum += tallies[t].calls[k];
		n += snprintf(buf + n, sizeof buf - n, "%s\"%s\":%" PRIu64, k ? "," : "{", names[k], sum);
	}
	for (int t = 0; t < MAX_THREADS; t++)
		bad += tallies[t].bad;
	n += snprintf(buf + n, sizeof buf - n, ",\"bad\":%" PRIu64 "}\n", bad);
	if (write(1, buf, n) != n)
		_exit(4);
}

static void on_usr1(int sig) {
	(void)sig;
	report();
}

int main(int argc, char **argv) {
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	char line[256];
	if (threads < 1 || threads > MAX_THREADS)
		return 2;
	signal(SIGUSR1, on_usr1);
	for (int t = 0; t < threads; t++)
		start(work, (void *)(uintptr_t)t);
	say("ready");
	if (argc > 2)
		go(threads, strtoull(argv[2], NULL, 0));
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			go(threads, number(line, "go", 1));
		report();
	}
	report();
	return 0;
}
