// A process with known signal actions, that does next to nothing, under a seccomp filter if one is named:
//   actions [allow|log|kill|trap|errno|nosigreturn|argument|strict]
// Filters other than "allow" and "log" act on mmap alone; "nosigreturn" on rt_sigreturn, "argument" on mmap of
// one page, as the test makes. To each line it answers "ok".
#include "common.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static void handler(int sig) { (void)sig; }
static void handler3(int sig, siginfo_t *i, void *c) { (void)sig, (void)i, (void)c; }

static void filter(uint32_t nr, uint32_t action, int argument) {
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_STMT(BPF_MISC | BPF_TAX, 0),
		BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, nr),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4096, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JA, argument, 0, 0),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = {sizeof f / sizeof f[0], f};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p))
		die("seccomp");
}

int main(int argc, char **argv) {
	struct sigaction a = {.sa_sigaction = handler3, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	sigaddset(&a.sa_mask, SIGUSR2), sigaddset(&a.sa_mask, SIGTRAP);
	struct sigaction b = {.sa_handler = handler, .sa_flags = SA_RESTART};
	struct sigaction c = {.sa_handler = handler, .sa_flags = SA_NODEFER};
	sigfillset(&c.sa_mask);
	if (sigaction(SIGUSR1, &a, NULL) || sigaction(SIGALRM, &b, NULL) || sigaction(64, &c, NULL))
		die("sigaction");
	signal(SIGPIPE, SIG_IGN);
	const char *mode = argc > 1 ? argv[1] : "";
	static const struct { const char *name; uint32_t nr, action; int argument; } modes[] = {
		{"allow", SYS_mmap, SECCOMP_RET_ALLOW, 0}, {"log", SYS_mmap, SECCOMP_RET_LOG, 0},
		{"kill", SYS_mmap, SECCOMP_RET_KILL_PROCESS, 0}, {"trap", SYS_mmap, SECCOMP_RET_TRAP, 0},
		{"errno", SYS_mmap, SECCOMP_RET_ERRNO | ENOTTY, 0}, {"nosigreturn", SYS_rt_sigreturn, SECCOMP_RET_KILL_PROCESS, 0},
		{"argument", SYS_mmap, SECCOMP_RET_KILL_PROCESS, 1},
	};
	for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
		if (!strcmp(mode, modes[i].name))
			filter(modes[i].nr, modes[i].action, modes[i].argument);
	if (!strcmp(mode, "strict") && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		die("seccomp");
	say("ready");
	char l[64];
	while (line(l, sizeof l))
		say("ok 1");
	_exit(0);
}
