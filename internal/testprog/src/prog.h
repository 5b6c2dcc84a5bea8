// What the test programs share: the protocol on standard input and output.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef __clang__
#define NOINLINE __attribute__((noinline, used))
#else
#define NOINLINE __attribute__((noinline, noclone, used))
#endif

// say prints one line and sends it at once.
__attribute__((format(printf, 1, 2))) static inline void say(const char *format, ...) {
	va_list ap;
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

// die ends the program with a message: something it relies on does not hold.
static inline void die(const char *what) {
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(3);
}

// command reads a line of at most 255 bytes without its end; 0 at the end of the input.
static inline int command(char line[256]) {
	for (;;) {
		errno = 0;
		if (fgets(line, 256, stdin)) {
			line[strcspn(line, "\n")] = 0;
			return 1;
		}
		if (feof(stdin) || errno != EINTR)
			return 0;
		clearerr(stdin);
	}
}

// number reads the number after the word cmd, or gives other if there is none.
static inline uint64_t number(const char *line, const char *cmd, uint64_t other) {
	const char *s = line + strlen(cmd);
	while (*s == ' ')
		s++;
	return *s ? strtoull(s, NULL, 0) : other;
}

static inline int is(const char *line, const char *cmd) {
	size_t n = strlen(cmd);
	return strncmp(line, cmd, n) == 0 && (line[n] == 0 || line[n] == ' ');
}

static inline uint64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// start runs f(arg) in a new thread.
static inline pthread_t start(void *(*f)(void *), void *arg) {
	pthread_t t;
	errno = pthread_create(&t, NULL, f, arg);
	if (errno)
		die("pthread_create");
	return t;
}
