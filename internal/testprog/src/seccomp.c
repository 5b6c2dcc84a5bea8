// Runs under a seccomp filter.
//
//	seccomp MODE     commands: go N, count, deny, sync, permit, quit
//
// MODE: strict (mode 1: read, write, exit, sigreturn), kill and errno (a filter that lets
// through the few calls that the program makes, and kills the process or answers EPERM for
// every other one), trap (every other one raises SIGSYS, which a handler counts), none,
// thread and blocked (only a thread that makes all the calls is under the filter of kill;
// with blocked the other one blocks SIGSEGV). deny takes on a filter that kills the process for
// rt_sigprocmask, gettid, nanosleep and futex, by prctl; sync likewise, by seccomp with
// SECCOMP_FILTER_FLAG_TSYNC; permit one that lets everything through.
#include "prog.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static uint64_t calls, bad;
static volatile uint64_t sigsys;
volatile uint64_t seven = 7; // for whoever reads memory

NOINLINE uint64_t jailed(uint64_t a, uint64_t b) { return a * 7 + b; }

static void on_sys(int sig) {
	(void)sig;
	sigsys++;
}

#define ALLOW(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void filter(uint32_t otherwise) {
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(SYS_read),
		ALLOW(SYS_write),
		ALLOW(SYS_exit),
		ALLOW(SYS_exit_group),
		ALLOW(SYS_rt_sigreturn),
		BPF_STMT(BPF_RET | BPF_K, otherwise),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		die("seccomp");
}

#define KILL(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static void later(int sync, int deny) {
	struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		KILL(SYS_rt_sigprocmask),
		KILL(SYS_gettid),
		KILL(SYS_nanosleep),
		KILL(SYS_futex),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	if (!deny)
		prog = (struct sock_fprog){1, all};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		die("no new privileges");
	if (sync ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog)
		 : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		die("filter");
}

static void out(const char *s, size_t n) {
	if (syscall(SYS_write, 1, s, n) != (long)n)
		syscall(SYS_exit, 4);
}

static void report(void) {
	char buf[128];
	int n = snprintf(buf, sizeof buf, "{\"jailed\":%" PRIu64 ",\"sigsys\":%" PRIu64 ",\"bad\":%" PRIu64 "}\n", calls,
			 sigsys, bad);
	out(buf, (size_t)n);
}

// line reads a command byte by byte: the C library's buffers may need other system calls.
static int line(char *s, int max) {
	for (int n = 0; n < max - 1; n++) {
		if (syscall(SYS_read, 0, s + n, 1) != 1)
			return 0;
		if (s[n] == '\n') {
			s[n] = 0;
			return 1;
		}
	}
	return 0;
}

NOINLINE void go(uint64_t max) {
	for (uint64_t i = 0; i < max; i++, calls++)
		bad += jailed(i, 2) != i * 7 + 2;
}

static int ask[2], answer[2]; // pipes to and from the jailed thread

static void *inmate(void *unused) {
	uint64_t max;
	filter(SECCOMP_RET_KILL_PROCESS);
	while (syscall(SYS_read, ask[0], &max, sizeof max) == sizeof max) {
		go(max);
		syscall(SYS_write, answer[1], &max, sizeof max);
	}
	return unused;
}

static void delegate(uint64_t max) {
	if (write(ask[1], &max, sizeof max) != sizeof max || read(answer[0], &max, sizeof max) != sizeof max)
		die("pipe");
}

static void inside(int blocked) {
	pthread_t t;
	sigset_t segv;
	if (pipe(ask) || pipe(answer) || pthread_create(&t, NULL, inmate, NULL))
		die("thread");
	sigemptyset(&segv);
	sigaddset(&segv, SIGSEGV);
	if (blocked)
		pthread_sigmask(SIG_BLOCK, &segv, NULL);
	delegate(0); // it is under its filter when it answers
}

int main(int argc, char **argv) {
	const char *mode = argc > 1 ? argv[1] : "none";
	char cmd[256];
	signal(SIGSYS, on_sys);
	if (strcmp(mode, "strict") == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		die("seccomp");
	if (strcmp(mode, "kill") == 0)
		filter(SECCOMP_RET_KILL_PROCESS);
	if (strcmp(mode, "errno") == 0)
		filter(SECCOMP_RET_ERRNO | EPERM);
	if (strcmp(mode, "trap") == 0)
		filter(SECCOMP_RET_TRAP);
	if (strcmp(mode, "thread") == 0 || strcmp(mode, "blocked") == 0)
		inside(mode[0] == 'b');
	out("ready\n", 6);
	while (line(cmd, sizeof cmd) && !is(cmd, "quit")) {
		if (is(cmd, "deny") || is(cmd, "sync") || is(cmd, "permit"))
			later(is(cmd, "sync"), !is(cmd, "permit"));
		if (is(cmd, "go"))
			(ask[1] ? delegate : go)(number(cmd, "go", 1));
		report();
	}
	report();
	syscall(ask[1] ? SYS_exit_group : SYS_exit, 0);
	return 0;
}
