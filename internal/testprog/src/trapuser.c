// Uses SIGTRAP itself: int3 instructions of its own, raise and kill.
//
//	trapuser     commands: go N, count, quit
//
// Each round calls plain, runs an int3, calls plain, raises SIGTRAP and sends it to itself
// with kill, and calls narrow, whose entry is too short for a jump: its loop comes back to
// the third byte. Its handler tells them apart by si_code and checks that the address after the
// int3 is the one that belongs to it.
#include "prog.h"
#include <ucontext.h>

static volatile uint64_t int3s, raised, bad;
static uint64_t plain_calls, narrow_calls;

NOINLINE uint64_t plain(uint64_t a, uint64_t b) { return a * 9 + b; }

extern char own_trap[];
void trap_here(void);
__asm__(".text\n.globl trap_here\n.type trap_here, @function\ntrap_here:\n"
	"lea (%rsp), %rax\n int3\n.globl own_trap\nown_trap:\n ret\n.size trap_here, .-trap_here\n");

// narrow adds b to 0, n times.
uint64_t narrow(uint64_t n, uint64_t b);
__asm__(".text\n.p2align 4\n.globl narrow\n.type narrow, @function\nnarrow:\n"
	" xor %eax, %eax\n1: add %rsi, %rax\n dec %rdi\n jnz 1b\n ret\n.size narrow, .-narrow\n.p2align 4\n");

static void handler(int sig, siginfo_t *si, void *ctx) {
	(void)sig;
	if (si->si_code == SI_USER || si->si_code == SI_TKILL) {
		raised++;
		return;
	}
	int3s++;
	bad += (char *)((ucontext_t *)ctx)->uc_mcontext.gregs[REG_RIP] != own_trap;
}

static void round_(uint64_t i) {
	bad += plain(i, 1) != i * 9 + 1;
	trap_here();
	bad += plain(i, 2) != i * 9 + 2;
	raise(SIGTRAP);
	kill(getpid(), SIGTRAP);
	bad += narrow(3, i) != 3 * i;
	plain_calls += 2;
	narrow_calls++;
}

static void report(void) {
	say("{\"plain\":%" PRIu64 ",\"narrow\":%" PRIu64 ",\"int3\":%" PRIu64 ",\"raised\":%" PRIu64 ",\"bad\":%" PRIu64 "}", plain_calls,
	    narrow_calls, int3s, raised, bad);
}

int main(void) {
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
	char line[256];
	sigaction(SIGTRAP, &sa, NULL);
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				round_(i);
		report();
	}
	report();
	return 0;
}
