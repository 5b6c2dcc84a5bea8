// Becomes another user, and is dumpable or not, which decides who may trace it (ptrace(2)).
//
//	dumpable UID 0|1     commands: go N, count, quit
//
// "go N" calls work N times.
#include "prog.h"
#include <grp.h>
#include <sys/prctl.h>

static uint64_t calls, bad;

NOINLINE uint64_t work(uint64_t a) { return a * 3 + 1; }

static void report(void) { say("{\"work\":%" PRIu64 ",\"bad\":%" PRIu64 "}", calls, bad); }

int main(int argc, char **argv) {
	char line[256];
	if (argc != 3)
		return 2;
	uid_t uid = (uid_t)strtoul(argv[1], NULL, 10);
	if (uid != getuid() && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
		die("setresuid");
	if (prctl(PR_SET_DUMPABLE, atoi(argv[2])))
		die("PR_SET_DUMPABLE");
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++, calls++)
				bad += work(i) != i * 3 + 1;
		report();
	}
	report();
	return 0;
}
