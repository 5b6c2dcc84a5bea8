// Calls of leaf from many kinds of frames, the same ones in each run.
//
//	stacks N [blocked] [damaged]   N rounds, then one more in a thread; prints how often leaf was called
//
// blocked: the signals of faults are blocked all the time. damaged: then leaf is called with frame pointers that lead nowhere, or
// to what is no frame.
#include "prog.h"
#include <alloca.h>
#include <stdexcept>

static uint64_t calls, sum;

extern "C" {
NOINLINE uint64_t leaf(uint64_t v) {
	calls++;
	asm volatile("" ::: "memory");
	return v + 1;
}

// Its caller is not on the stack.
NOINLINE uint64_t tail(uint64_t v) {
	return leaf(v * 2);
}

// A frame of varying size, found by the frame pointer.
NOINLINE uint64_t varying(uint64_t v) {
	char *p = (char *)alloca(16 + v % 77);
	memset(p, (int)v, 16);
	asm volatile("" ::"r"(p) : "memory");
	return (v == 0 ? leaf(v) : varying(v - 1)) + p[3];
}

// A frame that is aligned to more than a call leaves it.
NOINLINE uint64_t aligned(uint64_t v) {
	alignas(64) char room[64];
	char *more = (char *)alloca(v % 33 + 1);
	asm volatile("" ::"r"(room), "r"(more) : "memory");
	return leaf((uintptr_t)room % 64 + v);
}

__attribute__((noinline, noclone, optimize("no-omit-frame-pointer"))) uint64_t framed(uint64_t v) {
	uint64_t r = leaf(v);
	asm volatile("" ::: "memory");
	return r + tail(v);
}

NOINLINE int compare(const void *a, const void *b) {
	sum += leaf(1);
	return *(const int *)a - *(const int *)b;
}

NOINLINE void onsignal(int) { sum += leaf(2); }

NOINLINE uint64_t thrower(uint64_t v) {
	if (v == 0)
		throw std::runtime_error("at the bottom");
	return thrower(v - 1) + 1;
}
}

static inline __attribute__((always_inline)) uint64_t inlined(uint64_t v) {
	v ^= 5;
	return leaf(v) * 3;
}

static inline __attribute__((always_inline)) uint64_t twice(uint64_t v) {
	uint64_t r = inlined(v);
	return r + inlined(r);
}

struct Guard {
	uint64_t v;
	__attribute__((noinline)) ~Guard() { sum += leaf(v); }
};

struct Base {
	virtual ~Base() = default;
	virtual uint64_t value(uint64_t v) = 0;
};
struct Deep : Base {
	__attribute__((noinline)) uint64_t value(uint64_t v) override { return v % 3 == 0 ? leaf(v) : value(v - 1) + 1; }
};

extern "C" NOINLINE uint64_t guarded(uint64_t v) {
	Guard g{v};
	return thrower(v % 4);
}

extern "C" NOINLINE void once(uint64_t i, Base *b) {
	int numbers[5] = {4, (int)(i % 7), 2, 9, 1};
	sum += varying(i % 6) + aligned(i) + framed(i) + twice(i) + b->value(i % 8);
	qsort(numbers, 5, sizeof numbers[0], compare);
	try {
		sum += guarded(i);
	} catch (const std::exception &e) {
		sum += leaf(strlen(e.what()));
	}
	raise(SIGUSR1); // on a stack of its own
	raise(SIGUSR2);
}

// A frame that is found by the frame pointer, which is wrong while leaf runs.
extern "C" __attribute__((noinline, noclone, optimize("no-omit-frame-pointer"))) uint64_t damaged(uint64_t fp) {
	uint64_t r;
	asm volatile("mov %%rbp, %%rbx\n\tmov %1, %%rbp\n\tcall leaf\n\tmov %%rbx, %%rbp"
	             : "=a"(r)
	             : "r"(fp), "D"(fp)
	             : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
	return r;
}

static void damage(void) {
	uint64_t here = (uint64_t)__builtin_frame_address(0);
	uint64_t *heap = (uint64_t *)calloc(4, 8);
	const uint64_t wrong[] = {
	    0, 1, 7, 16, here - 4096, here + 8, here + 3, here + (64 << 20), (uint64_t)heap, 0x7ffffffff000, 1ull << 47, 1ull << 63,
	    0xffffffff81000000, 0xffffffffff600000, ~0ull - 15,
	};
	for (uint64_t w : wrong)
		if (damaged(w) != w + 1)
			die("a wrong result");
	free(heap);
}

static void *thread(void *arg) {
	Deep d;
	once((uint64_t)(uintptr_t)arg, &d);
	return nullptr;
}

int main(int argc, char **argv) {
	static char stack[64 << 10];
	stack_t alt = {};
	alt.ss_sp = stack;
	alt.ss_size = sizeof stack;
	struct sigaction a = {};
	a.sa_handler = onsignal;
	a.sa_flags = SA_ONSTACK;
	if (sigaltstack(&alt, nullptr) || sigaction(SIGUSR1, &a, nullptr))
		die("signal handler");
	a.sa_flags = 0;
	if (sigaction(SIGUSR2, &a, nullptr))
		die("signal handler");
	int wrong = 0;
	for (int i = 2; i < argc; i++) {
		sigset_t faults;
		sigemptyset(&faults);
		sigaddset(&faults, SIGSEGV);
		sigaddset(&faults, SIGBUS);
		if (!strcmp(argv[i], "damaged"))
			wrong = 1;
		else if (sigprocmask(SIG_BLOCK, &faults, nullptr))
			die("sigprocmask");
	}
	Deep d;
	uint64_t rounds = argc > 1 ? strtoull(argv[1], nullptr, 0) : 1;
	for (uint64_t i = 0; i < rounds; i++)
		once(i, &d);
	pthread_t t;
	if (pthread_create(&t, nullptr, thread, (void *)(uintptr_t)rounds) || pthread_join(t, nullptr))
		die("thread");
	if (wrong)
		damage();
	say("{\"leaf\":%" PRIu64 ",\"sum\":%" PRIu64 "}", calls, sum);
}
