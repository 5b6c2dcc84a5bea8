// Measures the largest gap that a spinning thread sees: how long it was not running.
//
//	spinner [THREADS]     commands: reset, gap (answers nanoseconds, by thread and the largest), quit
//
// Each thread is bound to a CPU, thread t to the t-th that it may use, and reads the time
// stamp counter in a loop that calls spin_step, so that there is something to probe. "gap"
// also says how far CLOCK_MONOTONIC and the counter went since "reset".
#include "prog.h"
#include <sched.h>
#include <x86intrin.h>

#define MAX_THREADS 16

static struct {
	volatile uint64_t gap, steps, epoch;
	char pad[40];
} spins[MAX_THREADS];
static volatile uint64_t epoch;
static uint64_t reset_tsc, reset_ns;
static int nthreads;

NOINLINE uint64_t spin_step(uint64_t a, uint64_t b) { return a + (b ^ 1); }

static void bind(int t) {
	cpu_set_t may, one;
	sched_getaffinity(0, sizeof may, &may);
	t %= CPU_COUNT(&may);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &may) && t-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof one, &one);
			return;
		}
}

static void *spin(void *arg) {
	int t = (int)(uintptr_t)arg;
	uint64_t seen = 0, gap = 0, x = 0, steps = 0;
	bind(t);
	for (uint64_t last = __rdtsc();;) {
		uint64_t now = __rdtsc();
		if (seen != epoch) {
			seen = epoch;
			gap = 0;
			spins[t].gap = 0;
			spins[t].epoch = seen;
			now = __rdtsc(); // the one above may be from before the reset
		} else if (now - last > gap) {
			gap = now - last;
			spins[t].gap = gap;
		}
		last = now;
		x = spin_step(x, now);
		spins[t].steps = ++steps;
	}
	return (void *)x;
}

static void reset(void) {
	reset_tsc = __rdtsc();
	reset_ns = now_ns();
	epoch++;
	for (int t = 0; t < nthreads; t++)
		while (spins[t].epoch != epoch)
			sched_yield();
}

// report reads the gaps before the clocks: no gap is longer than the time since reset.
static void report(void) {
	uint64_t gaps[MAX_THREADS], max = 0, steps = 0, dt, ns;
	char each[512];
	int len = 0;
	for (int t = 0; t < nthreads; t++) {
		gaps[t] = spins[t].gap;
		steps += spins[t].steps;
	}
	dt = __rdtsc() - reset_tsc;
	ns = now_ns() - reset_ns;
	for (int t = 0; t < nthreads; t++) {
		uint64_t g = (uint64_t)((double)gaps[t] * ((double)ns / (double)dt));
		len += snprintf(each + len, sizeof each - len, "%s%" PRIu64, t ? "," : "", g);
		max = g > max ? g : max;
	}
	say("{\"gap\":%" PRIu64 ",\"gaps\":[%s],\"ns\":%" PRIu64 ",\"cycles\":%" PRIu64 ",\"steps\":%" PRIu64 "}", max, each, ns,
	    dt, steps);
}

int main(int argc, char **argv) {
	char line[256];
	nthreads = argc > 1 ? atoi(argv[1]) : 1;
	if (nthreads < 1 || nthreads > MAX_THREADS)
		return 2;
	for (int t = 0; t < nthreads; t++)
		start(spin, (void *)(uintptr_t)t);
	reset();
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "reset"))
			reset();
		report();
	}
	report();
	return 0;
}
