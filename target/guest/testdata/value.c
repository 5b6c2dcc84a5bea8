// build: -static
// value CALL N: makes one system call that gives back N, and prints what it gives. CALL is
// lseek, or write (N bytes to /dev/null).
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static char buf[32];
	if (argc < 3)
		return 2;
	long n = strtol(argv[2], 0, 0), r;
	if (!strcmp(argv[1], "lseek"))
		r = syscall(SYS_lseek, open("/proc/self/exe", O_RDONLY), n, SEEK_SET);
	else
		r = syscall(SYS_write, open("/dev/null", O_WRONLY), buf, n);
	int len = snprintf(buf, sizeof buf, "%ld\n", r);
	return syscall(SYS_write, 1, buf, len) != len;
}
