// Ends in one of many ways.
//
//	exit     commands: go N, exit STATUS, _exit STATUS, group (exit from another thread), main
//	         (the first thread exits, another goes on), abort, kill SIGNAL, within (exit inside
//	         the function last_call), count, quit
#include "prog.h"
#include <sys/syscall.h>

static uint64_t calls, bad;

NOINLINE uint64_t last_call(uint64_t a, int leave) {
	if (leave)
		exit(7);
	return a * 17;
}

static void burst(uint64_t max) {
	for (uint64_t i = 0; i < max; i++, calls++)
		bad += last_call(i, 0) != i * 17;
}

static void report(void) { say("{\"last_call\":%" PRIu64 ",\"bad\":%" PRIu64 "}", calls, bad); }

static void *group(void *arg) {
	syscall(SYS_exit_group, 9);
	return arg;
}

static void *go_on(void *arg) {
	char line[256];
	pthread_join(*(pthread_t *)arg, NULL);
	report();
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			burst(number(line, "go", 1));
		report();
	}
	report();
	exit(0);
	return arg;
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			burst(number(line, "go", 1));
		if (is(line, "exit"))
			exit((int)number(line, "exit", 0));
		if (is(line, "_exit"))
			_exit((int)number(line, "_exit", 0));
		if (is(line, "group"))
			pthread_join(start(group, NULL), NULL);
		if (is(line, "main")) {
			static pthread_t first;
			first = pthread_self();
			start(go_on, &first);
			pthread_exit(NULL);
		}
		if (is(line, "abort"))
			abort();
		if (is(line, "kill")) {
			int sig = (int)number(line, "kill", SIGKILL);
			if (sig != SIGKILL && sig != SIGSTOP)
				signal(sig, SIG_DFL);
			raise(sig);
		}
		if (is(line, "within"))
			last_call(1, 1);
		report();
	}
	report();
	return 0;
}
