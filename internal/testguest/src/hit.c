// build: -static
// hit WHAT N CPU [ARGS]: makes N system calls of one kind, pinned to a CPU (-1: not), in a
// loop that does nothing else, and prints what it counted as one line of JSON.
//
//	hit open N CPU                        openat of a file that does not exist
//	hit openname N CPU PATH FLAGS MODE    openat of PATH; a file that opens is closed
//	hit getppid N CPU
//	hit read N CPU                        a byte of /dev/zero
//	hit write N CPU                       a byte to /dev/null
//	hit close N CPU                       of a descriptor that is not open
//	hit chown N CPU                       lchown of /no/such to user 7, group 8: do_fchownat
//	hit sync N CPU                        ksys_sync
//	hit tcp N CPU                         N messages of 64 bytes through loopback, read each
//	hit value N CPU CALL                  one call that gives back N: lseek, or write (N bytes to /dev/null)
//
// ok and failed are calls by their result, bytes the sum of what was transferred, errno the
// last error, ticks what the time stamp counter has advanced by from before the first call
// until after the last.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

static unsigned long ok, failed, bytes;
static int last_errno;

static void die(const char *what)
{
	fprintf(stderr, "hit: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void note(long r)
{
	if (r >= 0) {
		ok++;
		bytes += r;
	} else {
		failed++;
		last_errno = errno;
	}
}

static void pin(int cpu)
{
	cpu_set_t set;
	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		die("sched_setaffinity");
}

static unsigned long opens(unsigned long n, const char *path, int flags, int mode)
{
	unsigned long start = __rdtsc();
	for (unsigned long i = 0; i < n; i++) {
		long fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
		if (fd >= 0) {
			ok++;
			close(fd);
		} else {
			failed++;
			last_errno = errno;
		}
	}
	return __rdtsc() - start;
}

static unsigned long calls(unsigned long n, long nr, long a, long b, long c)
{
	unsigned long start = __rdtsc();
	for (unsigned long i = 0; i < n; i++)
		note(syscall(nr, a, b, c));
	return __rdtsc() - start;
}

static unsigned long device(unsigned long n, const char *path, int flags, long nr)
{
	char c = 0;
	int fd = open(path, flags);
	if (fd < 0)
		die(path);
	return calls(n, nr, fd, (long)&c, 1);
}

static unsigned long tcp(unsigned long n)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	char buf[64] = "hit";
	int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
	if (l < 0 || c < 0 || bind(l, (void *)&a, sizeof a) || listen(l, 1) || getsockname(l, (void *)&a, &len) || connect(c, (void *)&a, sizeof a))
		die("tcp connection");
	int s = accept(l, 0, 0);
	if (s < 0)
		die("accept");
	unsigned long start = __rdtsc();
	for (unsigned long i = 0; i < n; i++) {
		note(write(c, buf, sizeof buf));
		for (size_t got = 0; got < sizeof buf;) {
			long r = read(s, buf + got, sizeof buf - got);
			if (r <= 0)
				die("read");
			got += r;
		}
	}
	return __rdtsc() - start;
}

static unsigned long value(unsigned long n, const char *call)
{
	unsigned long start = __rdtsc();
	if (!strcmp(call, "lseek"))
		note(syscall(SYS_lseek, open("/proc/self/exe", O_RDONLY), n, SEEK_SET));
	else if (!strcmp(call, "write"))
		note(syscall(SYS_write, open("/dev/null", O_WRONLY), 0, n)); // which looks at no byte
	return __rdtsc() - start;
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "hit: WHAT N CPU are missing\n");
		return 2;
	}
	const char *what = argv[1];
	unsigned long n = strtoul(argv[2], 0, 0), ticks;
	pin(atoi(argv[3]));
	if (!strcmp(what, "open"))
		ticks = opens(n, "/no/such/file", O_RDONLY, 0);
	else if (!strcmp(what, "openname") && argc == 7)
		ticks = opens(n, argv[4], strtol(argv[5], 0, 0), strtol(argv[6], 0, 0));
	else if (!strcmp(what, "getppid"))
		ticks = calls(n, SYS_getppid, 0, 0, 0);
	else if (!strcmp(what, "read"))
		ticks = device(n, "/dev/zero", O_RDONLY, SYS_read);
	else if (!strcmp(what, "write"))
		ticks = device(n, "/dev/null", O_WRONLY, SYS_write);
	else if (!strcmp(what, "close"))
		ticks = calls(n, SYS_close, -1, 0, 0);
	else if (!strcmp(what, "chown"))
		ticks = calls(n, SYS_lchown, (long)"/no/such", 7, 8);
	else if (!strcmp(what, "sync"))
		ticks = calls(n, SYS_sync, 0, 0, 0);
	else if (!strcmp(what, "tcp"))
		ticks = tcp(n);
	else if (!strcmp(what, "value") && argc == 5) {
		ticks = value(n, argv[4]);
		n = 1;
	} else {
		fprintf(stderr, "hit: %s is not known, or lacks arguments\n", what);
		return 2;
	}
	printf("{\"calls\":%lu,\"ok\":%lu,\"failed\":%lu,\"bytes\":%lu,\"errno\":%d,\"ticks\":%lu,\"pid\":%d}\n",
	       n, ok, failed, bytes, last_errno, ticks, getpid());
	return 0;
}
