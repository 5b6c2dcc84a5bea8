// A function that is called with little stack left.
//
//	scant            commands: room N BAD, stand N, alternate N, quit
//
// "room N BAD" calls hit with N bytes of stack below its return address and a page without access under them;
// its argument points to a text, with BAD not 0 to that page. "stand N" writes "standing" with N bytes of stack below,
// waits there for a line, and calls hit from further up; "alternate N" does so in a signal handler, with N bytes left of
// an alternate stack in static memory. The program has no other.
#include "prog.h"
#include <signal.h>
#include <sys/mman.h>

static uint64_t hits;

// hit is 3*v+1, and uses no stack.
uint64_t hit(const char *v);
uint64_t hit_on(const char *v, void *stack);
__asm__(".text\n.p2align 4\n.globl hit\n.type hit, @function\nhit:\n"
	" lea 1(%rdi,%rdi,2), %rax\n nop\n ret\n.size hit, .-hit\n.p2align 4\n"
	".globl hit_on\n.type hit_on, @function\nhit_on:\n"
	" push %rbx\n mov %rsp, %rbx\n mov %rsi, %rsp\n call hit\n mov %rbx, %rsp\n pop %rbx\n ret\n"
	".size hit_on, .-hit_on\n");


// stand_on writes, reads one byte after the other until a line ends, and calls hit, on a stack of the caller's.
uint64_t stand_on(const char *v, void *stack, const char *say, uint64_t size, char *byte);
__asm__(".text\n.p2align 4\n.globl stand_on\n.type stand_on, @function\nstand_on:\n"
	" push %rbx\n push %r12\n push %r13\n mov %rsp, %rbx\n mov %rsi, %rsp\n mov %rdi, %r12\n mov %r8, %r13\n"
	" mov $1, %eax\n mov $1, %edi\n mov %rdx, %rsi\n mov %rcx, %rdx\n syscall\n"
	"1: xor %eax, %eax\n xor %edi, %edi\n mov %r13, %rsi\n mov $1, %edx\n syscall\n"
	" cmpb $10, (%r13)\n jne 1b\n"
	" mov %r12, %rdi\n add $1024, %rsp\n call hit\n mov %rbx, %rsp\n pop %r13\n pop %r12\n pop %rbx\n ret\n"
	".size stand_on, .-stand_on\n");


static void stand(void *stack) {
	char byte = 0;
	if (stand_on("", stack, "standing\n", 9, &byte) != 3 * (uint64_t)"" + 1)
		die("hit");
	hits++;
}

static char alternate[32 << 10];
static uint64_t left; // bytes of it

static void handler(int sig) {
	(void)sig;
	stand(alternate + left);
}

static void on_alternate(void) {
	stack_t alt = {.ss_sp = alternate, .ss_size = sizeof alternate}, off = {.ss_flags = SS_DISABLE};
	struct sigaction act = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	if (sigaltstack(&alt, NULL) || sigaction(SIGUSR1, &act, NULL) || raise(SIGUSR1) || sigaltstack(&off, NULL))
		die("alternate stack");
}

int main(void) {
	char line[256];
	const size_t page = 4096;
	char *stack = mmap(NULL, 9 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED || mprotect(stack, page, PROT_NONE))
		die("mmap");
	say("ready");
	while (command(line) && !is(line, "quit")) {
		char *rest = line;
		if (is(line, "stand") || is(line, "alternate")) {
			left = strtoull(strchr(line, ' '), NULL, 0);
			if (is(line, "stand"))
				stand(stack + page + left);
			else
				on_alternate();
			say("{\"hit\":%" PRIu64 "}", hits);
			continue;
		}
		uint64_t room = strtoull(strchr(line, ' ') ? strchr(line, ' ') : "0", &rest, 0), bad = strtoull(rest, NULL, 0);
		const char *v = bad ? stack : "a text of some length";
		if (hit_on(v, stack + page + room + 8) != 3 * (uint64_t)v + 1)
			die("hit");
		hits++;
		say("{\"hit\":%" PRIu64 "}", hits);
	}
	say("{\"hit\":%" PRIu64 "}", hits);
	return 0;
}
