// Forks inside a function; the children go on calling.
//
//	forker     commands: go N, fork N, hold, release, count, quit
//
// forking(i) calls fork; the child returns from it, calls child_work CALLS times, tells its
// parent over a pipe how often and with how many bad results, and exits. "go N" does that N
// times. "fork N" starts N children that stay, calling child_work all the time, until
// "release"; it answers with their pids. "hold" is "fork 1".
#include "prog.h"
#include <sys/wait.h>

#define CALLS 1000
#define MAX_KIDS 16

static struct {
	uint64_t forks, work, kids_work, bad;
} n;
static pid_t kids[MAX_KIDS];
static int pipes[MAX_KIDS], nkids;

NOINLINE uint64_t child_work(uint64_t a, uint64_t b) { return a * 3 + b; }

// forking returns in parent and child: the child's pid, or 0.
NOINLINE pid_t forking(uint64_t i) {
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	n.forks += pid != 0 || i == UINT64_MAX;
	return pid;
}

static uint64_t burst(uint64_t calls) {
	uint64_t bad = 0;
	for (uint64_t i = 0; i < calls; i++)
		bad += child_work(i, 7) != i * 3 + 7;
	return bad;
}

static void go(uint64_t i) {
	uint64_t sent[2];
	int fd[2], status;
	if (pipe(fd))
		die("pipe");
	pid_t pid = forking(i);
	if (pid == 0) {
		sent[0] = CALLS, sent[1] = burst(CALLS);
		_exit(write(fd[1], sent, sizeof sent) != sizeof sent);
	}
	n.bad += burst(CALLS);
	n.work += CALLS;
	if (read(fd[0], sent, sizeof sent) != sizeof sent)
		sent[0] = 0, sent[1] = 1;
	n.kids_work += sent[0];
	n.bad += sent[1];
	if (waitpid(pid, &status, 0) != pid || status != 0)
		n.bad++;
	close(fd[0]);
	close(fd[1]);
}

static volatile sig_atomic_t released;
static void on_term(int sig) { released = sig; }

static void stay(int out) {
	uint64_t sent[2] = {0, 0};
	do { // once at least, also if it is released before it has run
		sent[1] += burst(CALLS);
		sent[0] += CALLS;
		usleep(1000);
	} while (!released);
	_exit(write(out, sent, sizeof sent) != sizeof sent);
}

static void keep(uint64_t count) {
	char buf[512];
	int len = 0, fd[2];
	signal(SIGTERM, on_term); // for the children: it may come before they run
	for (uint64_t i = 0; i < count && nkids < MAX_KIDS; i++) {
		if (pipe(fd))
			die("pipe");
		pid_t pid = forking(i);
		if (pid == 0)
			stay(fd[1]);
		close(fd[1]);
		kids[nkids] = pid;
		pipes[nkids++] = fd[0];
	}
	signal(SIGTERM, SIG_DFL);
	for (int i = 0; i < nkids; i++)
		len += snprintf(buf + len, sizeof buf - len, "%s%d", i ? "," : "", kids[i]);
	say("[%s]", buf);
}

static void release(void) {
	while (nkids) {
		uint64_t sent[2];
		int status;
		kill(kids[--nkids], SIGTERM);
		if (read(pipes[nkids], sent, sizeof sent) != sizeof sent)
			sent[0] = 0, sent[1] = 1;
		n.kids_work += sent[0];
		n.bad += sent[1];
		if (waitpid(kids[nkids], &status, 0) != kids[nkids] || status != 0)
			n.bad++;
		close(pipes[nkids]);
	}
}

static void report(void) {
	say("{\"forking\":%" PRIu64 ",\"child_work\":%" PRIu64 ",\"child_work_in_children\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
	    n.forks, n.work, n.kids_work, n.bad);
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "fork") || is(line, "hold")) {
			keep(is(line, "fork") ? number(line, "fork", 1) : 1);
			continue;
		}
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				go(i);
		if (is(line, "release"))
			release();
		report();
	}
	release();
	report();
	return 0;
}
