// waits calls functions of the C library that may wait: on files, on sockets, on names and on a child.
//
//	waits N    makes N rounds, prints its counts and ends: of each function the calls, and those that have failed (NAME_failed)
//
// Each round opens a file that is there and one that is not, by open and by openat; fsyncs and fdatasyncs the first, and a
// descriptor that is none; connects a socket to one that accepts it, by accept and by accept4; sends and receives through them in each way;
// and looks up an address and a name that can not be one. At the end it runs a program, one that is not there, and two commands of a shell.
#include "prog.h"

#include <fcntl.h>
#include <netdb.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum {
	OPEN,
	OPENAT,
	FSYNC,
	FDATASYNC,
	CONNECT,
	ACCEPT,
	ACCEPT4,
	SEND,
	SENDTO,
	SENDMSG,
	RECV,
	RECVFROM,
	RECVMSG,
	GETADDRINFO,
	POSIX_SPAWN,
	POSIX_SPAWNP,
	SYSTEM,
	KINDS
};

static const char *const names[KINDS] = {"open", "openat", "fsync", "fdatasync", "connect", "accept", "accept4", "send", "sendto", "sendmsg", "recv",
	"recvfrom", "recvmsg", "getaddrinfo", "posix_spawn", "posix_spawnp", "system"};
static unsigned calls[KINDS], failures[KINDS];

// did counts a call, and gives its result.
static long did(int kind, long result, int failed) {
	calls[kind]++;
	failures[kind] += failed != 0;
	return result;
}

static void files(const char *path) {
	int fd = (int)did(OPEN, open(path, O_RDWR), 0);
	if (fd < 0)
		die(path);
	did(OPEN, open("/none/open", O_RDONLY), 1);
	int again = (int)did(OPENAT, openat(AT_FDCWD, path, O_RDONLY), 0);
	did(OPENAT, openat(AT_FDCWD, "/none/openat", O_RDONLY), 1);
	did(FSYNC, fsync(fd), 0);
	did(FSYNC, fsync(-1), 1);
	did(FDATASYNC, fdatasync(fd), 0);
	did(FDATASYNC, fdatasync(-1), 1);
	close(fd);
	close(again);
}

// pass sends through one socket in each way, and receives from the other.
static void pass(int from, int to) {
	char b[64] = "eight by";
	struct iovec v = {b, 8};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	did(SEND, send(from, b, 8, 0), 0);
	did(SENDTO, sendto(from, b, 8, 0, NULL, 0), 0);
	did(SENDMSG, sendmsg(from, &m, 0), 0);
	did(RECV, recv(to, b, 8, MSG_WAITALL), 0);
	did(RECVFROM, recvfrom(to, b, 8, MSG_WAITALL, NULL, NULL), 0);
	did(RECVMSG, recvmsg(to, &m, MSG_WAITALL), 0);
	did(RECV, recv(to, b, 8, MSG_DONTWAIT), 1);
}

static void sockets(const struct sockaddr_un *at, int listening) {
	for (int by4 = 0; by4 < 2; by4++) {
		int c = socket(AF_UNIX, SOCK_STREAM, 0);
		if (did(CONNECT, connect(c, (const struct sockaddr *)at, sizeof *at), 0))
			die("connect");
		int s = (int)(by4 ? did(ACCEPT4, accept4(listening, NULL, NULL, SOCK_CLOEXEC), 0) : did(ACCEPT, accept(listening, NULL, NULL), 0));
		pass(c, s);
		pass(s, c);
		close(c);
		close(s);
	}
	did(CONNECT, connect(-1, (const struct sockaddr *)at, sizeof *at), 1);
}

static void lookups(void) {
	struct addrinfo *found, hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
	if (did(GETADDRINFO, getaddrinfo("127.0.0.1", NULL, &hints, &found), 0))
		die("getaddrinfo");
	freeaddrinfo(found);
	did(GETADDRINFO, getaddrinfo("no.address", NULL, &hints, &found), 1);
}

static void children(void) {
	char *argv[] = {"true", NULL}, *envp[] = {NULL};
	pid_t pid;
	if (did(POSIX_SPAWN, posix_spawn(&pid, "/bin/true", NULL, NULL, argv, envp), 0) || waitpid(pid, NULL, 0) != pid)
		die("posix_spawn");
	if (did(POSIX_SPAWNP, posix_spawnp(&pid, "true", NULL, NULL, argv, envp), 0) || waitpid(pid, NULL, 0) != pid)
		die("posix_spawnp");
	did(POSIX_SPAWN, posix_spawn(&pid, "/none/spawn", NULL, NULL, argv, envp), 1);
	if (did(SYSTEM, system("exit 0"), 0) || did(SYSTEM, system("exit 3"), 1) >> 8 != 3)
		die("system");
}

int main(int argc, char **argv) {
	char dir[] = "/tmp/waits-XXXXXX", path[64];
	if (!mkdtemp(dir))
		die("mkdtemp");
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	snprintf(at.sun_path, sizeof at.sun_path, "%s/socket", dir);
	snprintf(path, sizeof path, "%s/file", dir);
	int listening = socket(AF_UNIX, SOCK_STREAM, 0), fd = creat(path, 0600);
	if (bind(listening, (struct sockaddr *)&at, sizeof at) || listen(listening, 8) || fd < 0)
		die(dir);
	close(fd);
	for (unsigned long n = argc > 1 ? strtoul(argv[1], NULL, 0) : 1; n > 0; n--) {
		files(path);
		sockets(&at, listening);
		lookups();
	}
	children();
	unlink(at.sun_path);
	unlink(path);
	rmdir(dir);
	printf("{");
	for (int i = 0; i < KINDS; i++)
		printf("%s\"%s\":%u,\"%s_failed\":%u", i ? "," : "", names[i], calls[i], names[i], failures[i]);
	say("}");
	return 0;
}
