// The calls of do_sys_open that Documentation/trace/kprobetrace.rst shows, with their arguments.
//
//	sysopen   commands: go N, quit
//
// "go" makes N calls, by turns of a file that is not there, of one that is, and of a directory. The answer has the calls so far ("calls"),
// those that have failed ("failed"), and what was 4 bytes above the stack pointer when the last call began ("word").
#include <errno.h>
#include <fcntl.h>

#include "prog.h"

#define KEEP(x) __asm__ volatile("" : "+r"(x)) // what is returned is used here: the call before is no jump

static uint64_t word;

NOINLINE long do_sys_open(int dfd, const char *filename, int flags, unsigned short mode) {
	memcpy(&word, (char *)__builtin_frame_address(0) + 12, sizeof word); // the frame begins with the caller's frame pointer
	int fd = openat(dfd, filename, flags, mode);
	if (fd < 0)
		return -errno;
	close(fd);
	return fd;
}

NOINLINE long sys_openat(int dfd, const char *filename, int flags, unsigned short mode) {
	long fd = do_sys_open(dfd, filename, flags, mode);
	KEEP(fd);
	return fd;
}

NOINLINE long sys_open(const char *filename, int flags, unsigned short mode) {
	long fd = do_sys_open(AT_FDCWD, filename, flags, mode);
	KEEP(fd);
	return fd;
}

static long call(uint64_t n) {
	switch (n % 3) {
	case 0:
		return sys_openat(3, "/no/such", 0x8000, 0);
	case 1:
		return sys_open("/etc/passwd", 0x8000, 0666);
	}
	return sys_open("/etc", 0x98800, 020); // with O_DIRECTORY
}

int main(void) {
	char line[256];
	uint64_t calls = 0, failed = 0;
	say("ready");
	while (command(line) && !is(line, "quit")) {
		for (uint64_t n = number(line, "go", 1); n > 0; n--)
			failed += call(calls++) < 0;
		say("{\"calls\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"word\":%" PRIu64 "}", calls, failed, word);
	}
	say("{}");
	return 0;
}
