// Has 100,000 functions: many_0(a) returns a, many_99999(a) returns a + 99999.
//
//	many     commands: go N (each function N times), count, quit
#include "prog.h"

#define FUNCTIONS 100000
#define STR2(x) #x
#define STR(x) STR2(x)

__asm__(".text\n"
	".altmacro\n"
	".macro function n\n"
	"	.balign 16\n"
	"	.type many_\\n, @function\n"
	"many_\\n:	.cfi_startproc\n"
	"	lea \\n(%rdi), %rax\n"
	"	ret\n"
	"	.cfi_endproc\n"
	"	.size many_\\n, .-many_\\n\n"
	"	.pushsection .data.rel.local, \"aw\"\n"
	"	.quad many_\\n\n"
	"	.popsection\n"
	".endm\n"
	"	.pushsection .data.rel.local, \"aw\"\n"
	"	.balign 8\n"
	"functions:\n"
	"	.popsection\n"
	".set i, 0\n"
	".rept " STR(FUNCTIONS) "\n"
	"	function %i\n"
	"	.set i, i+1\n"
	".endr\n"
	".noaltmacro\n");

extern uint64_t (*const functions[FUNCTIONS])(uint64_t) __attribute__((visibility("hidden")));

static uint64_t calls, bad;

static void all(uint64_t max) {
	for (uint64_t i = 0; i < max; i++)
		for (uint64_t n = 0; n < FUNCTIONS; n++, calls++)
			bad += functions[n](i * 7) != i * 7 + n;
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			all(number(line, "go", 1));
		say("{\"calls\":%" PRIu64 ",\"bad\":%" PRIu64 "}", calls, bad);
	}
	return 0;
}
