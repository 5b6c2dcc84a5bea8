// A function into whose middle two others jump, as assembly does that shares a tail: one right
// before it by a short jump, one in another section by a long one.
//
//	cross     commands: go N, count, quit
//
// "go N" calls middle(n, 7), near(n, 7) and far(n, 7) for n from 1 to N.
#include "prog.h"

static struct {
	uint64_t middle, near, far, bad;
} n;

// middle is 3 * (a + b); near and far give 3 * (2 * a + b).
uint64_t middle(uint64_t a, uint64_t b), near(uint64_t a, uint64_t b), far(uint64_t a, uint64_t b);
__asm__(".text\n.p2align 5\n.globl near\n.type near, @function\nnear:\n"
	" lea (%rdi,%rdi), %rax\n jmp .Ltail\n.size near, .-near\n.p2align 4\n"
	".globl middle\n.type middle, @function\nmiddle:\n mov %rdi, %rax\n"
	".Ltail: add %rsi, %rax\n lea (%rax,%rax,2), %rax\n ret\n.size middle, .-middle\n.p2align 4\n"
	".section .text.unlikely,\"ax\",@progbits\n.globl far\n.type far, @function\nfar:\n"
	" lea (%rdi,%rdi), %rax\n jmp .Ltail\n.size far, .-far\n.text\n");

static void go(uint64_t calls) {
	for (uint64_t i = 1; i <= calls; i++) {
		n.bad += middle(i, 7) != 3 * (i + 7);
		n.bad += near(i, 7) != 3 * (2 * i + 7);
		n.bad += far(i, 7) != 3 * (2 * i + 7);
		n.middle++, n.near++, n.far++;
	}
}

static void report(void) {
	say("{\"middle\":%" PRIu64 ",\"near\":%" PRIu64 ",\"far\":%" PRIu64 ",\"bad\":%" PRIu64 "}", n.middle, n.near, n.far, n.bad);
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			go(number(line, "go", 1));
		report();
	}
	report();
	return 0;
}
