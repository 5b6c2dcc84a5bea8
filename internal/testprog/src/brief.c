// A process that ends soon, of which there are many.
//
//	brief                          commands: go N, quit
//	brief FILE [CALLS [STATUS]]    calls brief_work CALLS times (10), appends its counts to FILE, and exits with STATUS (0)
//	brief FILE CALLS STATUS AGAIN  does so, but before it exits it executes itself AGAIN times, each other time from another thread
//
// As the interpreter of a script it takes the script for FILE. Counts are a line of JSON, which begins with a # in a file: a
// script is a comment then.
#include "prog.h"
#include <fcntl.h>

static uint64_t calls, bad;

NOINLINE uint64_t brief_work(uint64_t a, uint64_t b) {
	uint64_t sum = a * 3;
	for (uint64_t i = 0; i < (b & 3); i++)
		sum += i ^ a;
	return sum + b;
}

static void burst(uint64_t max) {
	for (uint64_t i = 0; i < max; i++, calls++)
		bad += brief_work(i, 4) != i * 3 + 4;
}

// note appends the counts to a file, by one write: others do so too.
static void note(const char *file) {
	char line[128];
	int n = snprintf(line, sizeof line, "#{\"pid\":%d,\"brief_work\":%" PRIu64 ",\"bad\":%" PRIu64 "}\n", getpid(), calls, bad);
	int fd = open(file, O_WRONLY | O_APPEND | O_CREAT, 0666);
	if (fd < 0 || write(fd, line, (size_t)n) != n || close(fd))
		die(file);
}

static char **args;

// again executes the program once more.
static void *again(void *left) {
	char n[16];
	snprintf(n, sizeof n, "%d", *(int *)left - 1);
	execl("/proc/self/exe", args[0], args[1], args[2], args[3], n, NULL);
	die("exec");
	return left;
}

static void repeat(int left) {
	if (left % 2)
		pthread_join(start(again, &left), NULL);
	else
		again(&left);
}

int main(int argc, char **argv) {
	char line[256];
	if (argc > 1) {
		burst(argc > 2 ? strtoull(argv[2], NULL, 0) : 10);
		note(argv[1]);
		args = argv;
		if (argc > 4 && atoi(argv[4]) > 0)
			repeat(atoi(argv[4]));
		return argc > 3 ? atoi(argv[3]) : 0;
	}
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			burst(number(line, "go", 1));
		say("{\"brief_work\":%" PRIu64 ",\"bad\":%" PRIu64 "}", calls, bad);
	}
	say("{\"brief_work\":%" PRIu64 ",\"bad\":%" PRIu64 "}", calls, bad);
	return 0;
}
