#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

uint64_t forks;

NOINLINE long do_fork(unsigned long clone_flags, unsigned long stack_start, void *regs, unsigned long stack_size, int *parent_tidptr, int *child_tidptr) {
	return clone_flags + stack_start + stack_size + !regs + !parent_tidptr + !child_tidptr;
}

NOINLINE long sys_clone(unsigned long n) {
	int parent, child;
	long r;
	__atomic_add_fetch(&forks, 1, __ATOMIC_RELAXED);
	r = do_fork(n, 16, &forks, 4096 * n, &parent, &child);
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

long try_open(int fails) { return sys_open(fails ? "/no/such" : "/", O_RDONLY); }
