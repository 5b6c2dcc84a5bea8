// Writes a breakpoint into its own code, as a program does that instruments itself, and never runs it.
//
//	ownbreak    commands: quit
#include "prog.h"
#include <sys/mman.h>

NOINLINE uint64_t cold(uint64_t a) { return a * 5 + 2; }

int main(void) {
	char line[256];
	uint8_t *at = (uint8_t *)cold;
	size_t size = sysconf(_SC_PAGESIZE);
	void *page = (void *)((uintptr_t)at & -size);
	if (mprotect(page, size, PROT_READ | PROT_WRITE | PROT_EXEC))
		die("mprotect");
	*at = 0xcc;
	if (mprotect(page, size, PROT_READ | PROT_EXEC))
		die("mprotect");
	say("ready");
	while (command(line) && !is(line, "quit"))
		;
	say("{\"broken\":%d}", *at == 0xcc);
	return 0;
}
