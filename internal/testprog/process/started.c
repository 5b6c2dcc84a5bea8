// A program that tells how it was started: "started MODE ARGS", then its environment's
// variable KPROBES_TEST, its directory and its standard input, and "constructor" first of
// all, from a constructor that has started a thread, forked, vforked and sent itself a signal.
// Its exit status is the number MODE, or it dies by the signal -MODE.
#include "common.h"
#include <sys/wait.h>

static volatile int got;
static void on(int sig) { got = sig; }

static atomic_int ticks;

static void *tick(void *arg) {
	for (;;) {
		atomic_fetch_add(&ticks, 1);
		usleep(100);
	}
	return arg;
}

__attribute__((constructor)) static void before(void) {
	go(tick, NULL);
	signal(SIGUSR1, on);
	raise(SIGUSR1);
	int status = 1;
	pid_t p = fork();
	if (p == 0)
		_exit(7);
	waitpid(p, &status, 0);
	pid_t v = vfork();
	if (v == 0)
		_exit(0);
	waitpid(v, NULL, 0);
	// This child runs through main: without the breakpoint of who started us.
	if (getenv("KPROBES_FORK") && (p = fork()) == 0) {
		unsetenv("KPROBES_FORK");
		return;
	}
	if (getenv("KPROBES_FORK"))
		waitpid(p, &status, 0);
	say("constructor %d %d", got, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

int main(int argc, char **argv) {
	if (argc < 2)
		return 99;
	int mode = atoi(argv[1]);
	char dir[256] = "", in[64] = "";
	if (!getcwd(dir, sizeof dir))
		die("getcwd");
	int n = read(0, in, sizeof in - 1);
	say("started %s %s %s %s %.*s", argv[0], argc > 2 ? argv[2] : "-", getenv("KPROBES_TEST") ? getenv("KPROBES_TEST") : "-", dir, n < 0 ? 0 : n, in);
	int before = ticks;
	while (getenv("KPROBES_FORK") && ticks == before)
		usleep(100);
	if (mode < 0)
		kill(getpid(), -mode);
	return mode;
}
