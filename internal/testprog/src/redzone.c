// Keeps values below the stack pointer, in the 128 bytes that the psABI leaves to leaf functions.
//
//	redzone     commands: go N, count, quit
//
// redzone(a) writes sixteen values there, and reads them back after redzone_mid, a place to
// probe with all of the red zone live; redzone_flags is a place with live flags as well.
#include "prog.h"

static uint64_t calls, bad;

uint64_t redzone(uint64_t a);
extern char redzone_mid[], redzone_flags[];

#define PUT(n) "lea " #n "(%rdi), %rax\n mov %rax, -8*" #n "(%rsp)\n"
#define GET(n) "add -8*" #n "(%rsp), %rax\n"
__asm__(".text\n.p2align 4\n.globl redzone\n.type redzone, @function\nredzone:\n"
	PUT(1) PUT(2) PUT(3) PUT(4) PUT(5) PUT(6) PUT(7) PUT(8)
	PUT(9) PUT(10) PUT(11) PUT(12) PUT(13) PUT(14) PUT(15) PUT(16)
	".globl redzone_mid\nredzone_mid:\n xor %eax, %eax\n mov %rdi, %rdx\n"
	GET(1) GET(2) GET(3) GET(4) GET(5) GET(6) GET(7) GET(8)
	GET(9) GET(10) GET(11) GET(12) GET(13) GET(14) GET(15) GET(16)
	"cmp %rdx, %rax\n"
	".globl redzone_flags\nredzone_flags:\n lea 1(%rax), %rax\n lea -1(%rax), %rax\n"
	"jae 1f\n xor %eax, %eax\n1: ret\n.size redzone, .-redzone\n");

static void report(void) { say("{\"redzone\":%" PRIu64 ",\"bad\":%" PRIu64 "}", calls, bad); }

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++, calls++)
				bad += redzone(i) != 16 * i + 136;
		report();
	}
	report();
	return 0;
}
