// Calls functions with pointers that are bad, and strings of all lengths.
//
//	badptr [blocked]     commands: list, go, count, quit
//
// "go" calls take_ptr(p, i), take_str(s, i), take_pp(pp, i) and take_len(p, n, i) once for
// each case i, in order, and never looks behind the pointers itself. "list" tells each
// case: what reading it must give. With "blocked" all signals are blocked meanwhile.
//
//	ptr  kind "ok" with the 8 bytes there as value, or "fault"
//	str  kind "ok" with the length of the string, or "fault"
#include "prog.h"
#include <sys/mman.h>

#define MAX_CASES 512
#define LONGEST 4200

struct testcase {
	const char *what, *kind;
	const void *p;
	uint64_t value, len;
};
static struct testcase ptrs[MAX_CASES], strs[MAX_CASES];
static int nptrs, nstrs;
static uint64_t calls, bad;
static char *edge; // the end of a readable page

NOINLINE uint64_t take_ptr(const void *p, uint64_t i) { return (uint64_t)(uintptr_t)p ^ i; }
NOINLINE uint64_t take_str(const char *s, uint64_t i) { return (uint64_t)(uintptr_t)s + i; }
NOINLINE uint64_t take_pp(const char *const *pp, uint64_t i) { return (uint64_t)(uintptr_t)pp + i + 1; }
NOINLINE uint64_t take_len(const void *p, uint64_t n, uint64_t i) { return (uint64_t)(uintptr_t)p + n + i; }

static void ptr(const char *what, const void *p, const char *kind) {
	struct testcase c = {what, kind, p, 0, 0};
	if (strcmp(kind, "ok") == 0)
		memcpy(&c.value, p, 8);
	ptrs[nptrs++] = c;
}

static void str(const char *what, const char *s, const char *kind) {
	struct testcase c = {what, kind, s, 0, 0};
	if (strcmp(kind, "ok") == 0)
		c.len = strlen(s);
	strs[nstrs++] = c;
}

static char *pages(int n, int prot) {
	char *p = mmap(NULL, n * 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

// fresh returns the end of pages that hold fill; the page there can not be read. (One that
// is not mapped at all would soon be taken by the next mapping.)
static char *fresh(char fill) {
	char *p = pages(3, PROT_READ | PROT_WRITE);
	memset(p, fill, 8192);
	mprotect(p + 8192, 4096, PROT_NONE);
	return p + 8192;
}

// hole returns an address in the middle of 64 MiB where nothing is mapped.
static char *hole(void) {
	char *p = pages(16384, PROT_NONE);
	munmap(p, 16384 * 4096);
	return p + 8192 * 4096;
}

static void both(const char *what, const void *p) {
	ptr(what, p, "fault");
	str(what, p, "fault");
}

static void addresses(void) {
	static uint64_t good = 0x1122334455667788;
	char *exec_only = pages(1, PROT_READ | PROT_WRITE);
	both("null", NULL);
	both("one", (void *)1);
	both("small", (void *)0xfff);
	both("minus one", (void *)-1);
	both("non-canonical", (void *)0x800000000000);
	both("non-canonical high", (void *)0x8000000000000000);
	both("kernel", (void *)0xffffffff81000000);
	both("vsyscall", (void *)0xffffffffff600000);
	both("no access", pages(1, PROT_NONE));
	memset(exec_only, 'x', 4095);
	mprotect(exec_only, 4096, PROT_NONE);
	both("made inaccessible", exec_only + 16);
	both("unmapped", hole());
	ptr("static", &good, "ok");
	ptr("page's last word", edge - 8, "ok");
	for (int k = 1; k < 8; k++)
		ptr("across the edge", edge - k, "fault");
	ptr("never touched page", pages(1, PROT_READ | PROT_WRITE), "ok");
	ptr("write only", mmap(NULL, 4096, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), "ok");
}

static void strings(void) {
	char *end = fresh('e');
	for (int n = 0; n <= 66; n++) { // terminated by the page's last byte
		char *e = n % 8 == 0 ? fresh('a') : end;
		e[-1] = 0;
		str("ends with the page", e - 1 - n, "ok");
	}
	for (int n = 1; n <= 33; n++) // runs into the page behind
		str("runs over the edge", fresh('u') - n, "fault");
	static const int lens[] = {100, 127, 128, 129, 255, 256, 1000, 4093, 4094, 4095, 4096, 4097, LONGEST};
	for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
		char *s = calloc(1, LONGEST + 8);
		memset(s, 'a' + (int)(i % 26), lens[i]);
		str("long", s, "ok");
	}
	str("control bytes", "a\tb\nc\x1b[31md\x7f\xff\"\\", "ok");
}

static void go(int blocked) {
	sigset_t all, old;
	sigfillset(&all);
	if (blocked)
		pthread_sigmask(SIG_BLOCK, &all, &old);
	for (int i = 0; i < nptrs; i++) {
		const void *p = ptrs[i].p;
		bad += take_ptr(p, i) != ((uint64_t)(uintptr_t)p ^ (uint64_t)i);
	}
	for (int i = 0; i < nstrs; i++) {
		const char *s = strs[i].p;
		bad += take_str(s, i) != (uint64_t)(uintptr_t)s + i;
		bad += take_pp(&s, i) != (uint64_t)(uintptr_t)&s + i + 1;
		bad += take_len(s, strs[i].len, i) != (uint64_t)(uintptr_t)s + strs[i].len + i;
	}
	calls++;
	if (blocked)
		pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void list(const struct testcase *c, int n) {
	for (int i = 0; i < n; i++)
		printf("%s{\"what\":\"%s\",\"kind\":\"%s\",\"addr\":%" PRIu64 ",\"value\":%" PRIu64 ",\"len\":%" PRIu64 "}",
		       i ? "," : "", c[i].what, c[i].kind, (uint64_t)(uintptr_t)c[i].p, c[i].value, c[i].len);
}

static void report(void) {
	say("{\"take_ptr\":%" PRIu64 ",\"take_str\":%" PRIu64 ",\"take_pp\":%" PRIu64 ",\"take_len\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
	    calls * nptrs, calls * nstrs, calls * nstrs, calls * nstrs, bad);
}

int main(int argc, char **argv) {
	int blocked = argc > 1 && strcmp(argv[1], "blocked") == 0;
	char line[256];
	edge = fresh('E');
	addresses();
	strings();
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "list")) {
			printf("{\"ptrs\":[");
			list(ptrs, nptrs);
			printf("],\"strs\":[");
			list(strs, nstrs);
			say("]}");
			continue;
		}
		if (is(line, "go"))
			go(blocked);
		report();
	}
	report();
	return 0;
}
