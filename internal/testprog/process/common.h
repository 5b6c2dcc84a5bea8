// What these programs share. They speak lines: "ready" first, then an answer to each line
// of input, and end with the end of the input.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *what) {
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(3);
}

__attribute__((format(printf, 1, 2))) static inline void say(const char *format, ...) {
	char b[4096];
	va_list ap;
	va_start(ap, format);
	int n = vsnprintf(b, sizeof b - 1, format, ap);
	va_end(ap);
	b[n++] = '\n';
	if (write(1, b, n) != n)
		die("write");
}

// line reads a line of input, without its end; 0 at the end of the input.
static inline int line(char *b, int size) {
	int n = 0;
	for (;;) {
		char c;
		ssize_t r = read(0, &c, 1);
		if (r < 0)
			die("read"); // EINTR too: no signal handler runs here without SA_RESTART
		if (r == 0)
			return 0;
		if (c == '\n')
			break;
		if (n < size - 1)
			b[n++] = c;
	}
	b[n] = 0;
	return 1;
}

static inline pthread_t go(void *(*f)(void *), void *arg) {
	pthread_t t;
	errno = pthread_create(&t, NULL, f, arg);
	if (errno)
		die("pthread_create");
	return t;
}
