// A function that is called with little stack left.
//
//	scant            commands: room N BAD, quit
//
// "room N BAD" calls hit with N bytes of stack below its return address and a page without access under them;
// its argument points to a text, with BAD not 0 to that page. The program has no alternate stack.
#include "prog.h"
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

int main(void) {
	char line[256];
	const size_t page = 4096;
	char *stack = mmap(NULL, 9 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED || mprotect(stack, page, PROT_NONE))
		die("mmap");
	say("ready");
	while (command(line) && !is(line, "quit")) {
		char *rest = line;
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
