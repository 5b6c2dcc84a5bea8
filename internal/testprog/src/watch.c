// Accesses to variables, each from an instruction that has a name of its own.
//
//	watch [THREADS]   commands: go N, start, execute, where, quit
//
// "go" has THREADS threads (2 by default), which have run from the beginning, make N rounds of the accesses below, then as many
// threads that are made for it, and the answer counts the rounds of all. Every access has the number of its round in
// R12, from 0. Accesses to the bytes beside each variable are made too. "where" tells the addresses of the instructions, by
// the names of their labels. "execute" has the program execute itself.
#include "prog.h"

// What is watched stands between bytes that are accessed too.
struct padded {
	uint64_t before;
	union {
		uint8_t b;
		uint16_t w;
		uint32_t l;
		uint64_t q;
	} v;
	uint64_t after;
};

struct padded var1 __attribute__((aligned(32)));
struct padded var2 __attribute__((aligned(32)));
struct padded var4 __attribute__((aligned(32)));
struct padded var8 __attribute__((aligned(32)));
struct padded loop8 __attribute__((aligned(32)));
uint64_t plain8;
__asm__(".globl behind8\n.set behind8, loop8+24");

// A label is local to its function; the table knows how far it lies from the function's start.
#define LABEL(name) ".L" #name ": .pushsection .rodata.places,\"a\"; .quad .L" #name " - accesses; .popsection\n\t"

// accesses makes the accesses of one round. The instructions stand in the order of "names" below.
NOINLINE void accesses(uint64_t round) {
	__asm__ volatile("mov %0, %%r12\n\t"
		".pushsection .rodata.places,\"a\"; .globl places; places: .popsection\n\t"
		LABEL(store1) "movb %%r12b, 8+var1(%%rip)\n\t"
		"nop\n\t"
		LABEL(load1) "movzbl 8+var1(%%rip), %%eax\n\t"
		"movb %%r12b, 7+var1(%%rip)\n\t" // the bytes on both sides
		"movb %%r12b, 9+var1(%%rip)\n\t"
		LABEL(store2) "movw %%r12w, 8+var2(%%rip)\n\t"
		LABEL(load2) "movzwl 8+var2(%%rip), %%eax\n\t"
		"movw %%r12w, 6+var2(%%rip)\n\t"
		"movw %%r12w, 10+var2(%%rip)\n\t"
		LABEL(store4) "movl %%r12d, 8+var4(%%rip)\n\t"
		LABEL(inner4) "movb %%r12b, 10+var4(%%rip)\n\t" // a byte of it
		LABEL(add4) "lock addl $1, 8+var4(%%rip)\n\t"
		LABEL(load4) "movl 8+var4(%%rip), %%eax\n\t"
		"movl %%r12d, 4+var4(%%rip)\n\t"
		"movl %%r12d, 12+var4(%%rip)\n\t"
		LABEL(store8) "movq %%r12, 8+var8(%%rip)\n\t"
		LABEL(wide8) "movdqu %%xmm0, 4+var8(%%rip)\n\t" // reaches into it from before
		LABEL(load8) "addq 8+var8(%%rip), %%rax\n\t"
		"movq %%r12, var8(%%rip)\n\t"
		"movq 16+var8(%%rip), %%rax\n\t"
		"mov $2, %%ecx\n\t"
		"1:\n\t"
		LABEL(loop8) "movq %%r12, 8+loop8(%%rip)\n\t"
		"2: dec %%ecx\n\t"
		"jnz 1b\n\t"
		"jmp 3f\n\t"
		"jmp 2b\n\t" // behind the store stands the target of a jump
		"3: nop\n\t"
		:
		: "r"(round)
		: "rax", "rcx", "r12", "xmm0", "memory");
}

uint64_t target8;

// jumps goes where a variable says: who reads that is a jump, and the processor tells of its target only.
NOINLINE void jumps(uint64_t round) {
	__asm__ volatile("mov %0, %%r12\n\t"
		"lea 1f(%%rip), %%rax\n\t"
		LABEL(set8) "movq %%rax, target8(%%rip)\n\t"
		LABEL(jump8) "jmp *target8(%%rip)\n\t"
		"hlt\n\t"
		"1:\n\t"
		LABEL(landed8) "nop\n\t"
		:
		: "r"(round)
		: "rax", "r12", "memory");
}

extern const uint64_t places[];
static const char *const names[] = {
	"store1", "load1", "store2", "load2", "store4", "inner4", "add4", "load4", "store8", "wide8", "load8", "loop8", "set8", "jump8", "landed8",
};

static void round_of(uint64_t i) {
	accesses(i);
	jumps(i);
}

static uint64_t rounds;
static pthread_barrier_t begin, end;
static int leave;

static void *early(void *unused) {
	for (;;) {
		pthread_barrier_wait(&begin);
		if (leave)
			return unused;
		for (uint64_t i = 0; i < rounds; i++)
			round_of(i);
		pthread_barrier_wait(&end);
	}
}

// late is made for a command, and has another thread do half of the work.
static void *later(void *arg) {
	for (uint64_t i = (uint64_t)arg; i < rounds; i += 2)
		round_of(i);
	return NULL;
}

static void *late(void *unused) {
	pthread_t t = start(later, (void *)1);
	later((void *)0);
	pthread_join(t, NULL);
	return unused;
}

int main(int argc, char **argv) {
	char line[256];
	uint64_t all = 0;
	unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 2;
	pthread_t t[64];
	if (threads > 64)
		threads = 64;
	pthread_barrier_init(&begin, NULL, threads + 1);
	pthread_barrier_init(&end, NULL, threads + 1);
	for (unsigned i = 0; i < threads; i++)
		start(early, NULL);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "where")) {
			printf("{\"accesses\":%" PRIu64 ",\"jumps\":%" PRIu64, (uint64_t)(uintptr_t)accesses, (uint64_t)(uintptr_t)jumps);
			for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
				printf(",\"%s\":%" PRIu64, names[i], (uint64_t)(uintptr_t)accesses + places[i]);
			say("}");
			continue;
		}
		if (is(line, "execute")) {
			char *const again[] = {argv[0], NULL};
			execv("/proc/self/exe", again);
			die("execv");
		}
		rounds = number(line, "go", 1);
		pthread_barrier_wait(&begin);
		pthread_barrier_wait(&end);
		for (unsigned i = 0; i < threads; i++)
			t[i] = start(late, NULL);
		for (unsigned i = 0; i < threads; i++)
			pthread_join(t[i], NULL);
		plain8++;
		all = 2 * threads * rounds;
		say("{\"rounds\":%" PRIu64 "}", all);
	}
	leave = 1;
	pthread_barrier_wait(&begin);
	say("{\"rounds\":%" PRIu64 "}", all);
	return 0;
}
