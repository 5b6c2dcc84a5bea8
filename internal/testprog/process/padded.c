// A program whose .bss ends early in its last page. To each line it answers "ok 1".
// build: -Wl,-z,norelro
#include "common.h"

// The linker puts .bss last: all of this one is zero, and ends some bytes into a page.
__attribute__((aligned(4096))) static char last[4096 + 64];

int main(void) {
	last[4096] = 1;
	say("ready");
	char b[64];
	while (line(b, sizeof b))
		say(last[4096] == 1 ? "ok 1" : "bad last");
	return 0;
}
