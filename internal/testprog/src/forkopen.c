// The functions that the modules of Linux's Kprobes documentation probe.
// build: -fno-omit-frame-pointer -fno-optimize-sibling-calls
//
//	forkopen   commands: fork N, open N, quit
//
// "fork" has sys_clone call do_fork N times, with the number of the call as clone_flags, 4096 times it as stack_size. "open" makes N calls of sys_open: every third
// one fails, with ENOENT. The answer has the calls so far of do_fork ("forks") and sys_open ("opens"), and those of sys_open that have failed ("failed").
#include <errno.h>
#include <fcntl.h>

#include "prog.h"

static uint64_t forks, opens, failed, bad;

NOINLINE long do_fork(unsigned long clone_flags, unsigned long stack_start, void *regs, unsigned long stack_size, int *parent_tidptr, int *child_tidptr) {
	__asm__ volatile("" ::: "memory");
	return clone_flags + stack_start + stack_size + !regs + !parent_tidptr + !child_tidptr;
}

NOINLINE long sys_clone(unsigned long n) {
	int parent, child;
	long r = do_fork(n, 16, &forks, 4096 * n, &parent, &child);
	__asm__ volatile("" : "+r"(r));
	return r;
}

NOINLINE long sys_open(const char *name, int flags) {
	int fd = open(name, flags);
	if (fd < 0)
		return -errno;
	close(fd);
	return fd;
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "fork"))
			for (uint64_t n = number(line, "fork", 1); n > 0; n--) {
				forks++;
				bad += sys_clone(forks) != (long)(forks + 16 + 4096 * forks);
			}
		if (is(line, "open"))
			for (uint64_t n = number(line, "open", 1); n > 0; n--) {
				int fails = opens++ % 3 == 2;
				long got = sys_open(fails ? "/no/such" : "/", O_RDONLY);
				bad += fails ? got != -ENOENT : got < 0;
				failed += got < 0;
			}
		say("{\"forks\":%" PRIu64 ",\"opens\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"bad\":%" PRIu64 "}", forks, opens, failed, bad);
	}
	say("{}");
	return 0;
}
