// Threads that wait in system calls, each in one, and compare how it ended with how it
// should. "calls" answers "begin" when all are on their way, "timeouts" when those calls
// whose time must run on through a stop have timed out, "events" after it has let every
// other call have what it waits for and all have ended, with "ok COUNT" or "bad WHAT".
#include "common.h"
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>

static char what[512];
static atomic_int bad, ended, timed;

__attribute__((format(printf, 2, 3))) static void fail(const char *name, const char *format, ...) {
	if (atomic_fetch_add(&bad, 1))
		return;
	int n = snprintf(what, sizeof what, "%s: ", name);
	va_list ap;
	va_start(ap, format);
	vsnprintf(what + n, sizeof what - n, format, ap);
	va_end(ap);
}

// What the calls wait for. Channels: a pipe, a socket pair and so on for each.
static int wake_pipe[2], full_pipe[2], sp[32][2], listener[2], ep, efd, tfd, sfd, ifd, sem, msq, msq_full, lockfd[2], never[2];
static char lockname[] = "/tmp/kprobes-calls-XXXXXX";
static mqd_t mq;
static aio_context_t aio;
static uint32_t word;
static pid_t child[2];
static volatile int suspended;

static const struct timespec minute = {60, 0};

static int nsp;

// A case waits, and says whether it ended well. r is the call's result.
struct test {
	const char *name;
	long (*call)(struct test *);
	long want; // result; -1: any that is no error
	int fd;
};

static long c_epoll_wait(struct test *t) { struct epoll_event e; (void)t; return epoll_wait(ep, &e, 1, -1); }
static long c_epoll_wait_time(struct test *t) { struct epoll_event e; (void)t; return epoll_wait(ep, &e, 1, 60000); }
static long c_epoll_pwait(struct test *t) { struct epoll_event e; sigset_t s; (void)t; sigfillset(&s); return epoll_pwait(ep, &e, 1, 60000, &s); }
static long c_epoll_pwait2(struct test *t) { struct epoll_event e; (void)t; return syscall(SYS_epoll_pwait2, ep, &e, 1, &minute, NULL, 8); }
static long c_poll(struct test *t) { struct pollfd p = {t->fd, POLLIN, 0}; return poll(&p, 1, -1); }
static long c_poll_time(struct test *t) { struct pollfd p = {t->fd, POLLIN, 0}; return poll(&p, 1, 60000); }
static long c_ppoll(struct test *t) { struct pollfd p = {t->fd, POLLIN, 0}; sigset_t s; sigfillset(&s); return ppoll(&p, 1, &minute, &s); }
static long c_select(struct test *t) { fd_set f; FD_ZERO(&f); FD_SET(t->fd, &f); struct timeval tv = {60, 0}; return syscall(SYS_select, t->fd + 1, &f, NULL, NULL, &tv); }
static long c_pselect(struct test *t) { fd_set f; FD_ZERO(&f); FD_SET(t->fd, &f); return pselect(t->fd + 1, &f, NULL, NULL, &minute, NULL); }
static long c_futex(struct test *t) { (void)t; return syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0); }
static long c_futex_time(struct test *t) { (void)t; return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &minute, NULL, 0); }
static long c_semop(struct test *t) { struct sembuf b = {0, -1, 0}; (void)t; return semop(sem, &b, 1); }
static long c_semtimedop(struct test *t) { struct sembuf b = {0, -1, 0}; (void)t; return semtimedop(sem, &b, 1, &minute); }
struct message { long type; char b[64]; };
static long c_msgrcv(struct test *t) { struct message m; (void)t; return msgrcv(msq, &m, sizeof m.b, 0, 0); }
static long c_msgsnd(struct test *t) { struct message m = {1, "x"}; (void)t; return msgsnd(msq_full, &m, sizeof m.b, 0); }
static long c_recv(struct test *t) { char b; return recv(t->fd, &b, 1, 0); }
static long c_recvmsg(struct test *t) { char b; struct iovec v = {&b, 1}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1}; return recvmsg(t->fd, &m, 0); }
static long c_recvmmsg(struct test *t) { char b; struct iovec v = {&b, 1}; struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}}; return recvmmsg(t->fd, &m, 1, 0, NULL); }
static long c_read(struct test *t) { char b; return read(t->fd, &b, 1); }
static long c_read8(struct test *t) { uint64_t v; return read(t->fd, &v, 8); }
static long c_read_many(struct test *t) { char b[4096]; return read(t->fd, b, sizeof b); }
static long c_write(struct test *t) { char b[4096] = {0}; return write(t->fd, b, sizeof b); }
static long c_send(struct test *t) { char b[4096] = {0}; return send(t->fd, b, sizeof b, 0); }
static long c_accept(struct test *t) { return accept(t->fd, NULL, NULL); }
static long c_wait4(struct test *t) { (void)t; return waitpid(child[0], NULL, 0); }
static long c_waitid(struct test *t) { siginfo_t i; (void)t; return waitid(P_PID, child[1], &i, WEXITED | WNOWAIT); }
static long c_io_getevents(struct test *t) { struct io_event e; (void)t; return syscall(SYS_io_getevents, aio, 1, 1, &e, &minute); }
static long c_io_pgetevents(struct test *t) { struct io_event e; (void)t; return syscall(SYS_io_pgetevents, aio, 1, 1, &e, NULL, NULL); }
static long c_sigwait(struct test *t) { sigset_t s; (void)t; sigemptyset(&s); sigaddset(&s, SIGUSR2); return sigwaitinfo(&s, NULL); }
static long c_sigtimedwait(struct test *t) { sigset_t s; (void)t; sigemptyset(&s); sigaddset(&s, SIGUSR2); return sigtimedwait(&s, NULL, &minute); }
static long c_flock(struct test *t) { return flock(t->fd, LOCK_EX) || flock(t->fd, LOCK_UN); }
static long c_setlkw(struct test *t) { struct flock l = {.l_type = F_WRLCK}; return fcntl(t->fd, F_OFD_SETLKW, &l); }
static long c_mq(struct test *t) { char b[128]; (void)t; return mq_receive(mq, b, sizeof b, NULL); }
static long c_mq_time(struct test *t) { char b[128]; struct timespec at; (void)t; clock_gettime(CLOCK_REALTIME, &at); at.tv_sec += 60; return mq_timedreceive(mq, b, sizeof b, NULL, &at); }
// Suspended calls end with EINTR, by the signal that they wait for and no earlier.
static long c_suspend(struct test *t) { sigset_t s; (void)t; sigfillset(&s); sigdelset(&s, SIGUSR1); errno = 0; sigsuspend(&s); return errno == EINTR && suspended ? 0 : -1; }

// Calls whose own time must run on: each waits 700 ms, however often it is stopped.
static const struct timespec some = {0, 700000000};
static long t_nanosleep(struct test *t) { (void)t; return nanosleep(&some, NULL); }
static long t_clock(struct test *t) { (void)t; return clock_nanosleep(CLOCK_MONOTONIC, 0, &some, NULL); }
static long t_clock_abs(struct test *t) { struct timespec at; (void)t; clock_gettime(CLOCK_MONOTONIC, &at); at.tv_nsec += some.tv_nsec; at.tv_sec += at.tv_nsec / 1000000000; at.tv_nsec %= 1000000000; return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL); }
static long t_poll(struct test *t) { struct pollfd p = {t->fd, POLLIN, 0}; return poll(&p, 1, 700); }
static long t_futex(struct test *t) { static uint32_t own; (void)t; return syscall(SYS_futex, &own, FUTEX_WAIT, 0, &some, NULL, 0) == -1 && errno == ETIMEDOUT ? 0 : -1; }
static long t_select(struct test *t) { fd_set f; FD_ZERO(&f); FD_SET(t->fd, &f); struct timeval tv = {0, 700000}; return syscall(SYS_select, t->fd + 1, &f, NULL, NULL, &tv); }
static long t_ppoll(struct test *t) { struct pollfd p = {t->fd, POLLIN, 0}; struct timespec ts = some; return syscall(SYS_ppoll, &p, 1, &ts, NULL, 8); }

static struct test events[] = {
	{"epoll_wait", c_epoll_wait, 1, 0}, {"epoll_wait with timeout", c_epoll_wait_time, 1, 0},
	{"epoll_pwait", c_epoll_pwait, 1, 0}, {"epoll_pwait2", c_epoll_pwait2, 1, 0},
	{"poll", c_poll, 1, -2}, {"poll with timeout", c_poll_time, 1, -2}, {"ppoll", c_ppoll, 1, -2},
	{"select", c_select, 1, -2}, {"pselect", c_pselect, 1, -2},
	{"futex", c_futex, 0, 0}, {"futex with timeout", c_futex_time, 0, 0},
	{"semop", c_semop, 0, 0}, {"semtimedop", c_semtimedop, 0, 0},
	{"msgrcv", c_msgrcv, 64, 0}, {"msgsnd", c_msgsnd, 0, 0},
	{"recv", c_recv, 1, -2}, {"recv with SO_RCVTIMEO", c_recv, 1, -3},
	{"recvmsg with SO_RCVTIMEO", c_recvmsg, 1, -3}, {"recvmmsg with SO_RCVTIMEO", c_recvmmsg, 1, -3},
	{"read of a socket with SO_RCVTIMEO", c_read, 1, -3}, {"send with SO_SNDTIMEO", c_send, 4096, -4},
	{"write of a socket with SO_SNDTIMEO", c_write, 4096, -4},
	{"accept", c_accept, -1, -5}, {"accept with SO_RCVTIMEO", c_accept, -1, -6},
	{"read of a pipe", c_read, 1, -7}, {"write to a pipe", c_write, 4096, -8},
	{"read of an eventfd", c_read8, 8, -9}, {"read of a timerfd", c_read8, 8, -10},
	{"read of a signalfd", c_read_many, 128, -11}, {"read of inotify", c_read_many, -1, -12},
	{"wait4", c_wait4, -1, 0}, {"waitid", c_waitid, 0, 0},
	{"io_getevents", c_io_getevents, 1, 0}, {"io_pgetevents", c_io_pgetevents, 1, 0},
	{"sigwaitinfo", c_sigwait, SIGUSR2, 0}, {"sigtimedwait", c_sigtimedwait, SIGUSR2, 0},
	{"flock", c_flock, 0, -13}, {"fcntl F_OFD_SETLKW", c_setlkw, 0, -14},
	{"mq_receive", c_mq, 5, 0}, {"mq_timedreceive", c_mq_time, 5, 0},
	{"sigsuspend", c_suspend, 0, 0},
};
static struct test timeouts[] = {
	{"nanosleep", t_nanosleep, 0, 0}, {"clock_nanosleep", t_clock, 0, 0}, {"clock_nanosleep absolute", t_clock_abs, 0, 0},
	{"poll 700 ms", t_poll, 0, -15}, {"futex 700 ms", t_futex, 0, 0}, {"select 700 ms", t_select, 0, -15}, {"ppoll 700 ms", t_ppoll, 0, -15},
};
#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static pthread_t event_thread[COUNT(events)];

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *run_event(void *arg) {
	struct test *t = arg;
	errno = 0;
	long r = t->call(t);
	if (t->want >= 0 ? r != t->want : r < 0)
		fail(t->name, "result %ld (%s), want %ld", r, strerror(errno), t->want);
	atomic_fetch_add(&ended, 1);
	return NULL;
}

static void *run_timeout(void *arg) {
	struct test *t = arg;
	errno = 0;
	double from = now();
	long r = t->call(t);
	if (r != t->want)
		fail(t->name, "result %ld (%s), want %ld", r, strerror(errno), t->want);
	if (now() - from < 0.699)
		fail(t->name, "ended after %.3f s, before its time", now() - from);
	atomic_fetch_add(&timed, 1);
	return NULL;
}

static void on_usr1(int sig) { (void)sig; suspended = 1; }

// The pair of sockets of case number i.
static int *pair(void) {
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sp[nsp]))
		die("socketpair");
	return sp[nsp++];
}

static void timeo(int fd, int option) {
	struct timeval tv = {60, 0};
	if (setsockopt(fd, SOL_SOCKET, option, &tv, sizeof tv))
		die("setsockopt");
}

static int listen_on(void) {
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un a = {AF_UNIX, ""};
	if (bind(fd, (void *)&a, sizeof(sa_family_t)) || listen(fd, 8))
		die("listen");
	return fd;
}

static void fill(int fd) {
	char b[4096] = {0};
	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (write(fd, b, sizeof b) > 0)
		;
	fcntl(fd, F_SETFL, 0);
}

// take gives a case the descriptor that it asks for.
static int take(int kind) {
	int *p;
	switch (kind) {
	case -2: return pair()[0];
	case -3: p = pair(); timeo(p[0], SO_RCVTIMEO); return p[0];
	case -4: p = pair(); fill(p[0]); timeo(p[0], SO_SNDTIMEO); return p[0];
	case -5: return listener[0];
	case -6: timeo(listener[1], SO_RCVTIMEO); return listener[1];
	case -7: return wake_pipe[0];
	case -8: return full_pipe[1];
	case -9: return efd;
	case -10: return tfd;
	case -11: return sfd;
	case -12: return ifd;
	case -13: case -14: return open(lockname, O_RDWR);
	case -15: return never[0];
	}
	return kind;
}

static void setup(void) {
	sigset_t s;
	sigfillset(&s);
	pthread_sigmask(SIG_BLOCK, &s, NULL);
	struct sigaction sa = {.sa_handler = on_usr1};
	sigaction(SIGUSR1, &sa, NULL);
	if (pipe(wake_pipe) || pipe(full_pipe) || pipe(never))
		die("pipe");
	fill(full_pipe[1]);
	listener[0] = listen_on(), listener[1] = listen_on();
	efd = eventfd(0, 0), tfd = timerfd_create(CLOCK_MONOTONIC, 0);
	sigemptyset(&s), sigaddset(&s, SIGRTMIN);
	sfd = signalfd(-1, &s, 0), ifd = inotify_init();
	ep = epoll_create1(0);
	int *p = pair();
	struct epoll_event e = {.events = EPOLLIN};
	epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e); // pair 0 wakes all that wait for ep
	sem = semget(IPC_PRIVATE, 1, 0600), msq = msgget(IPC_PRIVATE, 0600), msq_full = msgget(IPC_PRIVATE, 0600);
	struct message m = {1, ""};
	while (msgsnd(msq_full, &m, sizeof m.b, IPC_NOWAIT) == 0)
		;
	lockfd[0] = mkstemp(lockname), lockfd[1] = open(lockname, O_RDWR);
	struct flock l = {.l_type = F_WRLCK};
	if (flock(lockfd[0], LOCK_EX) || fcntl(lockfd[1], F_OFD_SETLKW, &l))
		die("lock");
	if (inotify_add_watch(ifd, lockname, IN_ATTRIB) < 0)
		die("inotify");
	struct mq_attr a = {.mq_maxmsg = 4, .mq_msgsize = 128};
	char name[64];
	snprintf(name, sizeof name, "/kprobes-calls-%d", getpid());
	mq = mq_open(name, O_CREAT | O_RDWR, 0600, &a);
	if (mq < 0 || mq_unlink(name) || syscall(SYS_io_setup, 8, &aio))
		die("mq_open, io_setup");
	for (int i = 0; i < 2; i++)
		if ((child[i] = fork()) == 0) {
			char b;
			close(never[1]);
			_exit(read(never[0], &b, 1) != 1);
		}
	for (int i = 0; i < COUNT(events); i++)
		events[i].fd = take(events[i].fd);
	for (int i = 0; i < COUNT(timeouts); i++)
		timeouts[i].fd = take(timeouts[i].fd);
}

static void repeat(int n, int (*f)(void)) {
	for (int i = 0; i < n; i++)
		f();
}

static int send_mq(void) { return mq_send(mq, "hello", 5, 0); }
static int send_msg(void) { struct message m = {1, "x"}; return msgsnd(msq, &m, sizeof m.b, 0); }
static int post(void) { struct sembuf b = {0, 1, 0}; return semop(sem, &b, 1); }

// finish gives every case what it waits for.
static void finish(void) {
	char b[8192] = {0};
	for (int i = 0; i < nsp; i++)
		if (write(sp[i][1], b, 1) != 1)
			die("write");
	for (int i = 0; i < nsp; i++) // and room to those that send
		while (recv(sp[i][1], b, sizeof b, MSG_DONTWAIT) > 0)
			;
	word = 1;
	syscall(SYS_futex, &word, FUTEX_WAKE, 100, NULL, NULL, 0);
	repeat(2, post), repeat(1, send_msg), repeat(2, send_mq);
	struct message m;
	if (msgrcv(msq_full, &m, sizeof m.b, 0, 0) < 0 || read(full_pipe[0], b, 4096) < 0)
		die("msgrcv, read");
	for (int i = 0; i < 2; i++) {
		struct sockaddr_un a;
		socklen_t n = sizeof a;
		getsockname(listener[i], (void *)&a, &n);
		if (connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&a, n))
			die("connect");
	}
	uint64_t one = 1;
	struct itimerspec at = {{0, 0}, {0, 1000}};
	if (write(wake_pipe[1], b, 1) != 1 || write(efd, &one, 8) != 8 || timerfd_settime(tfd, 0, &at, NULL) ||
	    kill(getpid(), SIGRTMIN) || fchmod(lockfd[0], 0600) || flock(lockfd[0], LOCK_UN))
		die("write, timerfd_settime, kill, fchmod, flock");
	struct flock l = {.l_type = F_UNLCK};
	fcntl(lockfd[1], F_OFD_SETLKW, &l);
	int ev = eventfd(1, 0);
	for (int i = 0; i < 2; i++) {
		struct iocb *cb = calloc(1, sizeof *cb);
		*cb = (struct iocb){.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = ev, .aio_buf = POLLIN};
		if (syscall(SYS_io_submit, aio, 1, &cb) != 1)
			die("io_submit");
	}
	for (int i = 0; i < COUNT(events); i++)
		if (events[i].call == c_sigwait || events[i].call == c_sigtimedwait)
			pthread_kill(event_thread[i], SIGUSR2);
		else if (events[i].call == c_suspend)
			pthread_kill(event_thread[i], SIGUSR1);
	kill(child[0], SIGKILL), kill(child[1], SIGKILL);
	for (int i = 0; i < COUNT(events); i++)
		pthread_join(event_thread[i], NULL);
}

static void cleanup(void) {
	semctl(sem, 0, IPC_RMID);
	msgctl(msq, IPC_RMID, NULL);
	msgctl(msq_full, IPC_RMID, NULL);
	unlink(lockname);
	kill(child[0], SIGKILL), kill(child[1], SIGKILL);
}

int main(void) {
	setup();
	for (int i = 0; i < COUNT(events); i++)
		event_thread[i] = go(run_event, &events[i]);
	say("ready");
	char b[64];
	while (line(b, sizeof b)) {
		if (!strcmp(b, "begin"))
			for (int i = 0; i < COUNT(timeouts); i++)
				go(run_timeout, &timeouts[i]);
		else if (!strcmp(b, "timeouts")) {
			say("%d", timed == COUNT(timeouts));
			continue;
		} else if (!strcmp(b, "events"))
			finish();
		if (bad)
			say("bad %s", what);
		else
			say("ok %d", ended);
	}
	cleanup();
	return 0;
}
