// Functions that end in jumps to others, so that their exits do not tell their values.
//
//	tails   commands: go N, hold N, release, spin N, rest, twice N, same, count, quit
//
// "go" makes N rounds, each of which enters every function; "bad" counts results that are wrong.
// "hold" has N threads wait inside holding, one of them on a stack in shared memory, "release" lets
// them return. "spin" has N threads call spinning without a pause until "rest", which counts the
// calls. "twice" has N calls of twice return two times each, the second time from a copy
// of its stack. "same" tells in "frames" a number that stands for the return addresses that
// backtrace() sees.
#include "prog.h"
#include <execinfo.h>
#include <semaphore.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

static struct {
	uint64_t direct, plt, indirect, outer, inner, again, ping, pong, thrower, watched, forking, dying, switching, onsignal, holding, spinning, twice;
	uint64_t caught, frames, released, bad;
} n;
#define COUNT(x) __atomic_add_fetch(&n.x, 1, __ATOMIC_RELAXED)

struct Base {
	virtual ~Base() = default;
	virtual uint64_t value(uint64_t v) = 0;
};
struct Times7 : Base {
	uint64_t value(uint64_t v) override { return v * 7; }
};

extern "C" {
NOINLINE uint64_t leaf(uint64_t v) {
	asm volatile("");
	return v * 3;
}
NOINLINE uint64_t direct(uint64_t v) {
	COUNT(direct);
	return leaf(v + 1);
}
NOINLINE uint64_t plt(uint64_t v, const char *s) {
	COUNT(plt);
	return strtoull(s, nullptr, (int)v);
}
NOINLINE uint64_t indirect(uint64_t v, Base *b) {
	COUNT(indirect);
	return b->value(v);
}
NOINLINE uint64_t inner(uint64_t v) {
	COUNT(inner);
	return leaf(v + 2);
}
NOINLINE uint64_t outer(uint64_t v) {
	COUNT(outer);
	return inner(v + 1);
}
static uint64_t (*volatile ahead)(uint64_t, uint64_t);
NOINLINE uint64_t again(uint64_t v, uint64_t sum) {
	COUNT(again);
	return v ? ahead(v - 1, sum + v) : sum;
}
uint64_t pong(uint64_t v, uint64_t sum);
NOINLINE uint64_t ping(uint64_t v, uint64_t sum) {
	COUNT(ping);
	return v ? pong(v - 1, sum + 1) : sum;
}
NOINLINE uint64_t pong(uint64_t v, uint64_t sum) {
	COUNT(pong);
	return v ? ping(v - 1, sum + 2) : sum;
}
NOINLINE uint64_t throws(uint64_t v) {
	if (v % 2)
		throw std::runtime_error("odd");
	return v;
}
struct Guard {
	uint64_t &at;
	~Guard() { at++; }
};
// thrower is left by an exception that passes it, is caught in it, or is caught and thrown anew.
NOINLINE uint64_t thrower(uint64_t v) {
	COUNT(thrower);
	if (v % 4 == 3) {
		try {
			throws(v);
		} catch (const std::exception &) {
			if (v % 8 == 7)
				throw;
			return leaf(v);
		}
	}
	return throws(v);
}
// watched walks the stack below itself.
NOINLINE uint64_t watched(uint64_t v) {
	COUNT(watched);
	if (v % 16)
		return leaf(v);
	void *a[64] = {};
	int got = backtrace(a, 64);
	uint64_t h = got;
	for (int i = 0; i < got; i++)
		h = h * 31 + (uint64_t)a[i];
	n.frames = h;
	return v * 3;
}
NOINLINE uint64_t forking(uint64_t v) {
	COUNT(forking);
	if (v % 64)
		return leaf(v);
	pid_t pid = vfork();
	if (pid == 0)
		_exit(7);
	int status = 0;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WEXITSTATUS(status) == 7 ? v * 3 : 0;
}
static void cleanup(void *p) { ++*(volatile uint64_t *)p; }
static uint64_t cleaned;
NOINLINE uint64_t dying(uint64_t v) {
	COUNT(dying);
	if (v % 2)
		return leaf(v);
	pthread_cleanup_push(cleanup, &cleaned);
	Guard g{cleaned};
	if (v % 4 == 0)
		pthread_exit((void *)5);
	for (;;)
		pause();
	pthread_cleanup_pop(0);
	return 0;
}
static ucontext_t here, there;
NOINLINE uint64_t switching(uint64_t v) {
	COUNT(switching);
	if (v % 2)
		return leaf(v);
	swapcontext(&there, &here);
	return v * 3;
}
NOINLINE void counted(int) { COUNT(released); }
NOINLINE void onsignal(int s) {
	COUNT(onsignal);
	counted(s);
}
// twice keeps a copy of its stack, to which it is brought back when it has returned.
static ucontext_t inside;
static char copy[2048], *low;
static volatile int returned;
NOINLINE uint64_t twice(uint64_t v) {
	COUNT(twice);
	if (v % 2)
		return leaf(v);
	low = (char *)__builtin_frame_address(0) + 16 - sizeof copy;
	getcontext(&inside);
	if (!returned)
		memcpy(copy, low, sizeof copy);
	return v * 3;
}
NOINLINE uint64_t spinning(uint64_t v) {
	asm volatile("");
	return leaf(v);
}
static sem_t in, out;
NOINLINE uint64_t holding(uint64_t v) {
	COUNT(holding);
	if (v % 2)
		return leaf(v);
	sem_post(&in);
	while (sem_wait(&out) != 0)
		;
	return v * 3;
}
}

static uint64_t result;
static char stack[1 << 16] __attribute__((aligned(16)));
static void apart(int v) {
	result = switching(v);
	setcontext(&here);
}
static void *die(void *v) { return (void *)dying((uint64_t)v); }
static void *hold(void *v) { return (void *)holding((uint64_t)v); }
static void *deeper(void *) {
	for (uint64_t i = 0; i < 3; i++)
		n.bad += holding(2 * i) != 6 * i;
	return nullptr;
}

static pthread_t start_shared(void *(*f)(void *), void *arg) {
	const size_t size = 256 << 10;
	void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		die("mmap");
	pthread_t t;
	pthread_attr_t a;
	pthread_attr_init(&a);
	errno = pthread_attr_setstack(&a, at, size);
	if (!errno)
		errno = pthread_create(&t, &a, f, arg);
	if (errno)
		die("pthread_create");
	return t;
}
static volatile bool spin_on;
static void *spin(void *) {
	uint64_t i = 0;
	for (; spin_on; i++)
		if (spinning(i) != 3 * i)
			COUNT(bad);
	return (void *)i;
}

static void coroutine(uint64_t v) {
	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof stack;
	there.uc_link = nullptr;
	makecontext(&there, (void (*)(void))apart, 1, (int)v);
	result = 0;
	swapcontext(&here, &there);
	if (v % 2 == 0) {
		n.bad += result != 0;
		swapcontext(&here, &there);
	}
	n.bad += result != v * 3;
}

static void thread(uint64_t v) {
	void *r = nullptr;
	uint64_t before = cleaned;
	pthread_t t = start(die, (void *)v);
	if (v % 4 == 2)
		pthread_cancel(t);
	pthread_join(t, &r);
	if (v % 2)
		n.bad += r != (void *)(v * 3);
	else if (v % 4 == 0)
		n.bad += r != (void *)5 || cleaned != before + 2;
	else
		n.bad += r != PTHREAD_CANCELED;
}

static void round_(uint64_t i) {
	static Times7 times7;
	n.bad += direct(i) != (i + 1) * 3;
	n.bad += plt(10, "4711") != 4711;
	n.bad += indirect(i, &times7) != i * 7;
	n.bad += outer(i) != (i + 3) * 3;
	n.bad += again(9, i) != i + 45;
	n.bad += ping(8, i) != i + 12;
	try {
		n.bad += thrower(i) != (i % 8 == 3 ? i * 3 : i);
	} catch (const std::runtime_error &) {
		n.caught++;
		n.bad += i % 2 == 0 || i % 8 == 3;
	}
	n.bad += watched(i) != i * 3;
	n.bad += forking(i) != i * 3;
	coroutine(i);
	if (i % 32 < 3)
		thread(i);
	raise(SIGUSR1);
}

static void bring_back() {
	memcpy(low, copy, sizeof copy);
	setcontext(&inside);
}

NOINLINE static void twice_(uint64_t v) {
	returned = 0;
	n.bad += twice(v) != v * 3;
	if (returned++)
		return;
	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof stack;
	there.uc_link = nullptr;
	makecontext(&there, bring_back, 0);
	setcontext(&there);
}

static void report() {
	say("{\"direct\":%" PRIu64 ",\"plt\":%" PRIu64 ",\"indirect\":%" PRIu64 ",\"outer\":%" PRIu64 ",\"inner\":%" PRIu64
	    ",\"again\":%" PRIu64 ",\"ping\":%" PRIu64 ",\"pong\":%" PRIu64 ",\"thrower\":%" PRIu64 ",\"watched\":%" PRIu64
	    ",\"forking\":%" PRIu64 ",\"dying\":%" PRIu64 ",\"switching\":%" PRIu64 ",\"onsignal\":%" PRIu64
	    ",\"holding\":%" PRIu64 ",\"spinning\":%" PRIu64 ",\"twice\":%" PRIu64 ",\"caught\":%" PRIu64 ",\"frames\":%" PRIu64 ",\"released\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
	    n.direct, n.plt, n.indirect, n.outer, n.inner, n.again, n.ping, n.pong, n.thrower, n.watched, n.forking, n.dying,
	    n.switching, n.onsignal, n.holding, n.spinning, n.twice, n.caught, n.frames, n.released, n.bad);
}

int main() {
	char line[256];
	pthread_t held[64], spins[8];
	uint64_t holds = 0, spun = 0;
	ahead = again;
	sem_init(&in, 0, 0);
	sem_init(&out, 0, 0);
	signal(SIGUSR1, onsignal);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				round_(i);
		else if (is(line, "hold")) {
			uint64_t more = number(line, "hold", 1);
			for (uint64_t i = 0; i < more && holds < 63; i++, holds++)
				held[holds] = (i == 1 ? start_shared : start)(i ? hold : deeper, (void *)(2 * holds));
			for (uint64_t i = 0; i < more; i++)
				sem_wait(&in);
		} else if (is(line, "release")) {
			for (uint64_t i = 0; i < 2 * holds + 64; i++)
				sem_post(&out);
			for (uint64_t i = 0; i < holds; i++) {
				void *r = nullptr;
				pthread_join(held[i], &r);
				n.bad += r != nullptr && r != (void *)(6 * i);
			}
			holds = 0;
		} else if (is(line, "spin")) {
			spin_on = true;
			for (uint64_t max = number(line, "spin", 1); spun < max && spun < 8; spun++)
				spins[spun] = start(spin, nullptr);
		} else if (is(line, "rest")) {
			spin_on = false;
			while (spun) {
				void *r = nullptr;
				pthread_join(spins[--spun], &r);
				n.spinning += (uint64_t)r;
			}
		} else if (is(line, "twice"))
			for (uint64_t i = 0, max = number(line, "twice", 1); i < max; i++)
				twice_(2 * i);
		else if (is(line, "same"))
			n.bad += watched(16) != 48;
		report();
	}
	report();
	return 0;
}
