// Has its own handlers for faults, which count and repair them.
// build: -fno-ipa-ra
//
//	segv [FLAGS]     commands: go N, once, die, swap, back, count, quit
//
// FLAGS are those of the handlers: 1 SA_SIGINFO, 2 SA_ONSTACK, 4 SA_NODEFER, 8 SA_RESETHAND; 16 for
// no handlers at all; 32 for PR_SET_MDWE, after which no memory becomes executable; 3 if there are
// none. The handler checks that it is on the stack, and has the signal blocked, as they say.
//
// The first instruction of each of these functions faults, so that a probe at its entry
// moves the faulting instruction elsewhere; the handler checks that it is told the
// function's own address (rip) and the address of the data (si_addr), repairs and goes on:
//
//	touch(p)     writes a byte to a page without access      SIGSEGV, page made writable
//	past(p)      reads behind the end of a mapped file       SIGBUS, file made longer
//	divide(a,b)  divides by zero                             SIGFPE, result 0
//	undefined()  ud2                                         SIGILL, skipped
//	odd()        an instruction that the CPU does not know   SIGILL, skipped
//	nilread(p)   reads address 0x10                          SIGSEGV, left by siglongjmp
//	dispatch(p)  calls through a page without access         SIGSEGV, page made writable, filled in
//
// The last one is told the stack pointer that it runs with, too, and a table that it could call
// through (rdx); through calls it.
//
// swap has other handlers, which call those that they have replaced, once or again; back puts these back.
//
// once takes each fault twice in a child, whose second one must kill it (SA_RESETHAND); die
// once. Both end badly, as the kernel tells of the child's end, if it is not by that signal.
#include "prog.h"
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucontext.h>

static struct {
	uint64_t touch, past, divide, undefined, odd, nilread, dispatch, jumped, killed, bad;
} volatile n;
static char *page, *map;
static int file;
static long size;
static sigjmp_buf out;
static int flags = 3;
static char alt[1 << 16];

void touch(char *p);
char past(const char *p);
uint64_t divide(uint64_t a, uint64_t b);
uint64_t undefined(void);
uint64_t odd(void);
uint64_t nilread(const uint64_t *p);
uint64_t through(const void *table, uint64_t sp, const void *good);
uint64_t dispatch(const void *table, uint64_t sp, const void *good);
uint64_t answer(void);
#define SLOT 128 // of a table
static void *const good[SLOT / 8 + 1] = {[SLOT / 8] = answer};
extern char divided[];
__asm__(".text\n"
	".p2align 4\n.globl touch\n.type touch, @function\ntouch:\n movb $1, (%rdi)\n xor %eax, %eax\n ret\n.size touch, .-touch\n"
	".p2align 4\n.globl past\n.type past, @function\npast:\n movsbl (%rdi), %eax\n add $0, %eax\n ret\n.size past, .-past\n"
	// rdx:rax is divided by rsi, so a, its own remainder part, comes in rdi for nothing but a value to see.
	".p2align 4\n.globl divide_at\n.type divide, @function\n.globl divide\ndivide:\ndivide_at:\n div %rsi\n"
	".globl divided\ndivided: ret\n.size divide, .-divide\n"
	".p2align 4\n.globl undefined\n.type undefined, @function\nundefined:\n ud2\n mov $7, %eax\n ret\n.size undefined, .-undefined\n"
	// vmovdqa with a register in a field that must have none
	".p2align 4\n.globl odd\n.type odd, @function\nodd:\n .byte 0xc5, 0xe9, 0x6f, 0xc1\n mov $9, %eax\n ret\n.size odd, .-odd\n"
	".p2align 4\n.globl nilread\n.type nilread, @function\nnilread:\n mov (%rdi), %rax\n add $1, %rax\n ret\n.size nilread, .-nilread\n"
	".p2align 4\n.globl through\n.type through, @function\nthrough:\n lea -8(%rsp), %rsi\n call dispatch\n ret\n.size through, .-through\n"
	".skip 64, 0xcc\n" // a handler goes back to through, which must not be near
	".p2align 4\n.globl dispatch\n.type dispatch, @function\ndispatch:\n call *128(%rdi)\n ret\n.size dispatch, .-dispatch\n"
	".p2align 4\n.globl answer\n.type answer, @function\nanswer:\n mov $42, %eax\n ret\n.size answer, .-answer\n");

// stray counts what the flags do not say.
static void stray(int sig) {
	sigset_t m;
	char here;
	int on = &here >= alt && &here < alt + sizeof alt;
	sigemptyset(&m);
	pthread_sigmask(SIG_BLOCK, NULL, &m);
	n.bad += on != !!(flags & 2);
	n.bad += sigismember(&m, sig) == !!(flags & 4);
}

static void handler(int sig, siginfo_t *si, void *ctx) {
	greg_t *r = ((ucontext_t *)ctx)->uc_mcontext.gregs;
	char *ip = (char *)r[REG_RIP];
	int told = flags & 1; // else the kernel fills in no siginfo
	stray(sig);
	if (sig == SIGSEGV && ip == (char *)touch) {
		n.bad += told && (si->si_addr != page + 5 || si->si_code != SEGV_ACCERR);
		n.touch++;
		mprotect(page, size, PROT_READ | PROT_WRITE);
	} else if (sig == SIGSEGV && ip == (char *)nilread) {
		n.bad += (told && (si->si_addr != (void *)0x10 || si->si_code != SEGV_MAPERR)) || r[REG_RDI] != 0x10;
		n.nilread++;
		siglongjmp(out, 1);
	} else if (sig == SIGSEGV && ip == (char *)dispatch) {
		n.bad += (told && (si->si_addr != page + SLOT || si->si_code != SEGV_ACCERR)) || r[REG_RSP] != r[REG_RSI];
		n.dispatch++;
		mprotect(page, size, PROT_READ | PROT_WRITE);
		*(void **)(page + SLOT) = (void *)answer;
	} else if (sig == SIGBUS && ip == (char *)past) {
		n.bad += (told && si->si_addr != map) || r[REG_RDI] != (greg_t)map;
		n.past++;
		n.bad += ftruncate(file, size) != 0;
	} else if (sig == SIGFPE && ip == (char *)divide) {
		n.bad += (told && (si->si_code != FPE_INTDIV || si->si_addr != (void *)divide)) || r[REG_RSI] != 0;
		n.divide++;
		r[REG_RAX] = 0;
		r[REG_RIP] = (greg_t)divided;
	} else if (sig == SIGILL && ip == (char *)undefined) {
		n.bad += told && si->si_addr != (void *)undefined;
		n.undefined++;
		r[REG_RIP] += 2;
	} else if (sig == SIGILL && ip == (char *)odd) {
		n.bad += told && si->si_addr != (void *)odd;
		n.odd++;
		r[REG_RIP] += 4;
	} else {
		static const char sorry[] = "fault at an address that is none of ours\n";
		_exit(write(2, sorry, sizeof sorry - 1) ? 5 : 6);
	}
}

static const int faults[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction before[4]; // what swap has replaced

static void other(int sig, siginfo_t *si, void *ctx) {
	for (int i = 0; i < 4; i++)
		if (faults[i] == sig)
			before[i].sa_sigaction(sig, si, ctx);
}

static void swap(void) {
	struct sigaction sa = {.sa_sigaction = other, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	for (int i = 0; i < 4; i++)
		n.bad += sigaction(faults[i], &sa, &before[i]) != 0;
}

static void back(void) {
	for (int i = 0; i < 4; i++)
		n.bad += sigaction(faults[i], &before[i], NULL) != 0;
}

static void round_(uint64_t i) {
	mprotect(page, size, PROT_NONE);
	touch(page + 5);
	n.bad += page[5] != 1;
	n.bad += ftruncate(file, 0) != 0;
	n.bad += past(map) != 0;
	n.bad += divide(i, 0) != 0;
	n.bad += undefined() != 7;
	n.bad += odd() != 9;
	if (sigsetjmp(out, 1) == 0) {
		nilread((uint64_t *)0x10);
		n.bad++;
	}
	n.jumped++;
	n.bad += nilread(&i) != i + 1;
	mprotect(page, size, PROT_NONE);
	n.bad += through(page, 0, good) != 42;
}

// fault takes one fault.
static void fault(int sig) {
	switch (sig) {
	case SIGSEGV:
		mprotect(page, size, PROT_NONE);
		touch(page + 5);
		break;
	case SIGBUS:
		n.bad += ftruncate(file, 0) != 0;
		past(map);
		break;
	case SIGFPE:
		divide(1, 0);
		break;
	case SIGILL:
		odd();
	}
}

// killed takes faults in a child until one has killed it, but no more than those.
static void killed(int faults) {
	static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
	for (int i = 0; i < 4; i++) {
		int st;
		pid_t pid = fork();
		if (pid == 0) {
			for (int k = 0; k < faults; k++) {
				if (k == faults - 1)
					n.bad = 0;
				fault(signals[i]);
				if (k < faults - 1 && n.bad)
					_exit(7);
			}
			_exit(8);
		}
		if (pid < 0 || waitpid(pid, &st, 0) != pid)
			die("child");
		if (WIFSIGNALED(st) && WTERMSIG(st) == signals[i]) {
			n.killed++;
			continue;
		}
		fprintf(stderr, "signal %d: the child ended with %#x\n", signals[i], (unsigned)st);
		n.bad++;
	}
}

static void report(void) {
	say("{\"touch\":%" PRIu64 ",\"past\":%" PRIu64 ",\"divide\":%" PRIu64 ",\"undefined\":%" PRIu64
	    ",\"odd\":%" PRIu64 ",\"nilread\":%" PRIu64 ",\"dispatch\":%" PRIu64 ",\"jumped\":%" PRIu64 ",\"killed\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
	    n.touch, n.past, n.divide, n.undefined, n.odd, n.nilread + n.jumped, n.dispatch, n.jumped, n.killed, n.bad);
}

int main(int argc, char **argv) {
	static const int bits[] = {SA_SIGINFO, SA_ONSTACK, SA_NODEFER, (int)SA_RESETHAND};
	struct sigaction sa = {.sa_sigaction = handler};
	stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
	char line[256];
	if (argc > 1)
		flags = atoi(argv[1]);
	for (int i = 0; i < 4; i++)
		sa.sa_flags |= flags >> i & 1 ? bits[i] : 0;
	size = sysconf(_SC_PAGESIZE);
	page = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file = memfd_create("past", MFD_CLOEXEC);
	map = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
	if (page == MAP_FAILED || file < 0 || map == MAP_FAILED || sigaltstack(&ss, NULL))
		die("set-up");
	for (int i = 0; i < 4 && !(flags & 16); i++)
		sigaction(faults[i], &sa, NULL);
	if (flags & 32 && prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0))
		die("PR_SET_MDWE");
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				round_(i);
		else if (is(line, "once"))
			killed(2);
		else if (is(line, "die"))
			killed(1);
		else if (is(line, "swap"))
			swap();
		else if (is(line, "back"))
			back();
		report();
	}
	report();
	return 0;
}
