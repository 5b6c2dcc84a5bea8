// Calls vfork inside a function, and can keep its parent waiting for the child.
//
//	vforker     commands: go N, hold (the child reads a line before its exec), count, quit
//
// While a vfork child lives its parent waits in the kernel, uninterruptibly for anyone who
// wants to stop it, and both share the memory.
#include "prog.h"
#include <sys/wait.h>

static struct {
	uint64_t vforks, work, bad;
} n;

NOINLINE uint64_t parent_work(uint64_t a) { return a * 5; }

NOINLINE int vforking(int hold) {
	int status = -1;
	pid_t pid = vfork();
	if (pid == 0) {
		char c = 0;
		while (hold && c != '\n' && read(0, &c, 1) == 1) // not from the parent's buffer, which is empty
			;
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return status;
}

static void report(void) {
	say("{\"vforking\":%" PRIu64 ",\"parent_work\":%" PRIu64 ",\"bad\":%" PRIu64 "}", n.vforks, n.work, n.bad);
}

static void once(int hold) {
	n.vforks++;
	n.bad += vforking(hold) != 0;
	n.work++;
	n.bad += parent_work(n.work) != 5 * n.work;
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				once(0);
		if (is(line, "hold"))
			once(1);
		report();
	}
	report();
	return 0;
}
