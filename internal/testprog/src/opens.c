// Calls of a function do_sys_open with the arguments of the kernel's, which Documentation/trace/kprobetrace.rst probes.
//
//	opens   commands: go N, quit
//
// "go" makes N calls, by turns of a file that is there and of one that is not. The answer has the calls ("calls") and those that have
// failed ("failed") so far.
#include <errno.h>
#include <fcntl.h>

#include "prog.h"

NOINLINE long do_sys_open(int dfd, const char *filename, int flags, int mode) {
	int fd = openat(dfd, filename, flags, mode);
	if (fd < 0)
		return -errno;
	close(fd);
	return fd;
}

int main(void) {
	char line[256];
	uint64_t calls = 0, failed = 0;
	say("ready");
	while (command(line) && !is(line, "quit")) {
		for (uint64_t n = number(line, "go", 1); n > 0; n--, calls++)
			failed += do_sys_open(AT_FDCWD, calls & 1 ? "/no/such" : "/etc/passwd", O_RDONLY, 0644) < 0;
		printf("{\"calls\":%" PRIu64 ",\"failed\":%" PRIu64, calls, failed);
		say("}");
	}
	say("{}");
	return 0;
}
