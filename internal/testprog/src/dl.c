// Loads and unloads shared objects.
//
//	dl     commands: open PATH, call N, back N, close, cycle PATH, again PATH, discard, storm PATH (a thread
//	       opens it, calls it and closes it for ever), count, quit
//
// "call N" calls lib_work of the open object N times; "back N" has lib_back of it call back N times; "cycle PATH" opens, calls it 100 times
// and closes; "again PATH" closes the open object and opens it once more; "discard" gives the page of
// lib_work's code back to the kernel, which takes it from its file when it is needed. Results must be
// a*2+b (libdlone) or a*3+b (libdltwo): "bad" counts others.
#include "prog.h"
#include <dlfcn.h>
#include <sys/mman.h>

static void *handle;
static uint64_t (*work)(uint64_t, uint64_t);
static uint64_t calls, opened, bad, factor;

static void open_(const char *path) {
	handle = dlopen(path, RTLD_NOW);
	if (!handle) {
		fprintf(stderr, "dlopen: %s\n", dlerror());
		exit(3);
	}
	work = (uint64_t(*)(uint64_t, uint64_t))dlsym(handle, "lib_work");
	factor = strstr(path, "dltwo") ? 3 : 2;
	opened++;
}

static void call(uint64_t n) {
	for (uint64_t i = 0; i < n && work; i++, calls++)
		bad += work(i, 5) != i * factor + 5;
}

NOINLINE uint64_t back(uint64_t a) {
	asm volatile("" ::: "memory");
	return a + 1;
}

NOINLINE void callback(uint64_t n) {
	uint64_t (*lib_back)(uint64_t (*)(uint64_t), uint64_t) = (uint64_t(*)(uint64_t(*)(uint64_t), uint64_t))dlsym(handle, "lib_back");
	for (uint64_t i = 0; i < n; i++)
		bad += lib_back(back, i) != i * factor + 1;
}

static void close_(void) {
	if (handle)
		bad += dlclose(handle) != 0;
	handle = NULL;
	work = NULL;
}

static void discard(void) {
	if (madvise((void *)((uintptr_t)work & -4096), 4096, MADV_DONTNEED))
		die("madvise");
}

static uint64_t storms;

static void *storm(void *path) {
	for (;; __atomic_fetch_add(&storms, 1, __ATOMIC_RELAXED)) {
		void *h = dlopen(path, RTLD_NOW);
		if (!h)
			die("dlopen");
		uint64_t (*f)(uint64_t, uint64_t) = (uint64_t(*)(uint64_t, uint64_t))dlsym(h, "lib_work");
		uint64_t by = strstr(path, "dltwo") ? 3 : 2;
		if (f(7, 5) != 7 * by + 5 || dlclose(h))
			__atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void report(void) {
	say("{\"lib_work\":%" PRIu64 ",\"opened\":%" PRIu64 ",\"addr\":%" PRIu64 ",\"bad\":%" PRIu64 ",\"storms\":%" PRIu64 "}", calls, opened,
	    (uint64_t)(uintptr_t)work, bad, storms);
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "open"))
			open_(line + 5);
		if (is(line, "call"))
			call(number(line, "call", 1));
		if (is(line, "back"))
			callback(number(line, "back", 1));
		if (is(line, "close"))
			close_();
		if (is(line, "again")) {
			close_();
			open_(line + 6);
		}
		if (is(line, "discard"))
			discard();
		if (is(line, "storm"))
			start(storm, strdup(line + 6));
		if (is(line, "cycle")) {
			open_(line + 6);
			call(100);
			close_();
		}
		report();
	}
	report();
	return 0;
}
