// A shared object that puts a thread into any program (LD_PRELOAD) which spins and measures
// the largest gap between two looks at the clock: how long the program was stopped.
// build: -shared -fPIC
//
// The file that KPROBES_SPIN names is mapped and holds three words: the test counts the
// first up to begin anew, the thread follows with the second, and the third is the
// largest gap since, in nanoseconds.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t *words;

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void *spin(void *arg) {
	setpriority(PRIO_PROCESS, (id_t)gettid(), -20); // so that others rarely push it aside
	for (uint64_t last = now();;) {
		uint64_t t = now();
		if (words[1] != words[0]) {
			words[2] = 0;
			words[1] = words[0];
			t = now();
		} else if (t - last > words[2]) {
			words[2] = t - last;
		}
		last = t;
	}
	return arg;
}

__attribute__((constructor)) static void start(void) {
	const char *path = getenv("KPROBES_SPIN");
	pthread_t th;
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (words == MAP_FAILED || pthread_create(&th, NULL, spin, NULL) != 0)
		abort();
	pthread_detach(th);
}
