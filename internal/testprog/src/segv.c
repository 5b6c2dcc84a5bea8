// Has its own handlers for faults, which count and repair them.
// build: -fno-ipa-ra
//
//	segv     commands: go N, count, quit
//
// The first instruction of each of these functions faults, so that a probe at its entry
// moves the faulting instruction elsewhere; the handler checks that it is told the
// function's own address (rip) and the address of the data (si_addr), repairs and goes on:
//
//	touch(p)     writes a byte to a page without access      SIGSEGV, page made writable
//	past(p)      reads behind the end of a mapped file       SIGBUS, file made longer
//	divide(a,b)  divides by zero                             SIGFPE, result 0
//	undefined()  ud2                                         SIGILL, skipped
//	nilread(p)   reads address 0x10                          SIGSEGV, left by siglongjmp
#include "prog.h"
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

static struct {
	uint64_t touch, past, divide, undefined, nilread, jumped, bad;
} volatile n;
static char *page, *map;
static int file;
static long size;
static sigjmp_buf out;

void touch(char *p);
char past(const char *p);
uint64_t divide(uint64_t a, uint64_t b);
uint64_t undefined(void);
uint64_t nilread(const uint64_t *p);
extern char divided[];
__asm__(".text\n"
	".p2align 4\n.globl touch\n.type touch, @function\ntouch:\n movb $1, (%rdi)\n xor %eax, %eax\n ret\n.size touch, .-touch\n"
	".p2align 4\n.globl past\n.type past, @function\npast:\n movsbl (%rdi), %eax\n add $0, %eax\n ret\n.size past, .-past\n"
	// rdx:rax is divided by rsi, so a, its own remainder part, comes in rdi for nothing but a value to see.
	".p2align 4\n.globl divide_at\n.type divide, @function\n.globl divide\ndivide:\ndivide_at:\n div %rsi\n"
	".globl divided\ndivided: ret\n.size divide, .-divide\n"
	".p2align 4\n.globl undefined\n.type undefined, @function\nundefined:\n ud2\n mov $7, %eax\n ret\n.size undefined, .-undefined\n"
	".p2align 4\n.globl nilread\n.type nilread, @function\nnilread:\n mov (%rdi), %rax\n add $1, %rax\n ret\n.size nilread, .-nilread\n");

static void handler(int sig, siginfo_t *si, void *ctx) {
	greg_t *r = ((ucontext_t *)ctx)->uc_mcontext.gregs;
	char *ip = (char *)r[REG_RIP];
	if (sig == SIGSEGV && ip == (char *)touch) {
		n.bad += si->si_addr != page + 5 || si->si_code != SEGV_ACCERR;
		n.touch++;
		mprotect(page, size, PROT_READ | PROT_WRITE);
	} else if (sig == SIGSEGV && ip == (char *)nilread) {
		n.bad += si->si_addr != (void *)0x10 || r[REG_RDI] != 0x10 || si->si_code != SEGV_MAPERR;
		n.nilread++;
		siglongjmp(out, 1);
	} else if (sig == SIGBUS && ip == (char *)past) {
		n.bad += si->si_addr != map || r[REG_RDI] != (greg_t)map;
		n.past++;
		n.bad += ftruncate(file, size) != 0;
	} else if (sig == SIGFPE && ip == (char *)divide) {
		n.bad += si->si_code != FPE_INTDIV || r[REG_RSI] != 0;
		n.divide++;
		r[REG_RAX] = 0;
		r[REG_RIP] = (greg_t)divided;
	} else if (sig == SIGILL && ip == (char *)undefined) {
		n.bad += si->si_addr != (void *)undefined;
		n.undefined++;
		r[REG_RIP] += 2;
	} else {
		static const char sorry[] = "fault at an address that is none of ours\n";
		_exit(write(2, sorry, sizeof sorry - 1) ? 5 : 6);
	}
}

static void round_(uint64_t i) {
	mprotect(page, size, PROT_NONE);
	touch(page + 5);
	n.bad += page[5] != 1;
	n.bad += ftruncate(file, 0) != 0;
	n.bad += past(map) != 0;
	n.bad += divide(i, 0) != 0;
	n.bad += undefined() != 7;
	if (sigsetjmp(out, 1) == 0) {
		nilread((uint64_t *)0x10);
		n.bad++;
	}
	n.jumped++;
	n.bad += nilread(&i) != i + 1;
}

static void report(void) {
	say("{\"touch\":%" PRIu64 ",\"past\":%" PRIu64 ",\"divide\":%" PRIu64 ",\"undefined\":%" PRIu64
	    ",\"nilread\":%" PRIu64 ",\"jumped\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
	    n.touch, n.past, n.divide, n.undefined, n.nilread + n.jumped, n.jumped, n.bad);
}

int main(void) {
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	static char alt[1 << 16];
	stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
	char line[256];
	size = sysconf(_SC_PAGESIZE);
	page = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file = memfd_create("past", MFD_CLOEXEC);
	map = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
	if (page == MAP_FAILED || file < 0 || map == MAP_FAILED || sigaltstack(&ss, NULL))
		die("set-up");
	sigaction(SIGSEGV, &sa, NULL);
	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGFPE, &sa, NULL);
	sigaction(SIGILL, &sa, NULL);
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
