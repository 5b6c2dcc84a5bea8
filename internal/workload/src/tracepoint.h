// A tracepoint as one would write it by hand into a program of one's own: what kprobe's
// records are measured against.
//
// It is straight-line code: no lock, no branch, no call but the time stamp. The CPU number
// comes from the thread's rseq area (glibc 2.35 registers one), the thread id from a
// thread-local variable. A record is 48 bytes in a buffer of the CPU's own; the oldest ones
// are overwritten, and nobody notices when two threads of one CPU write at once. kprobe's
// own records do the same work and also never tear, never overlap and count what is lost.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

struct tracepoint_record {
	uint64_t what; // size in 8-byte units (bits 0-15), event (16-31), thread id (32-63)
	uint64_t time; // time stamp counter
	uint64_t args[4];
};

struct tracepoint_buffer {
	uint64_t head; // bytes written since the start, on a cache line of its own
	uint64_t pad[7];
	char data[];
};

static char *tracepoint_buffers;    // one after the other, tracepoint_stride bytes apart
static uint64_t tracepoint_stride;  // bytes
static uint64_t tracepoint_mask;    // bytes of a buffer's data - 1; a power of two, less one
static __thread uint64_t tracepoint_thread; // thread id << 32

static inline __attribute__((always_inline)) void tracepoint(uint64_t event, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
	uint64_t cpu = *(volatile uint32_t __seg_fs *)(__rseq_offset + offsetof(struct rseq, cpu_id));
	struct tracepoint_buffer *buf = (void *)(tracepoint_buffers + cpu * tracepoint_stride);
	uint64_t head = buf->head;
	struct tracepoint_record *r = (void *)(buf->data + (head & tracepoint_mask));
	r->what = sizeof *r / 8 | event << 12 | tracepoint_thread;
	r->time = __rdtsc();
	r->args[0] = a;
	r->args[1] = b;
	r->args[2] = c;
	r->args[3] = d;
	__atomic_store_n(&buf->head, head + sizeof *r, __ATOMIC_RELEASE);
}

// tracepoint_open makes the buffers, of size bytes (a power of two) for each CPU, and
// touches all of them. 0 if there is no memory, or no rseq area to take the CPU from.
static inline int tracepoint_open(uint64_t size) {
	uint64_t cpus = (uint64_t)sysconf(_SC_NPROCESSORS_CONF);
	if (__rseq_size == 0)
		return 0;
	tracepoint_mask = size - 1;
	tracepoint_stride = sizeof(struct tracepoint_buffer) + size + 4096;
	tracepoint_buffers = aligned_alloc(4096, (cpus * tracepoint_stride + 4095) & ~4095ull);
	if (tracepoint_buffers)
		__builtin_memset(tracepoint_buffers, 0, cpus * tracepoint_stride);
	return tracepoint_buffers != NULL;
}

// tracepoint_enter makes the calling thread's id known.
static inline void tracepoint_enter(void) { tracepoint_thread = (uint64_t)syscall(SYS_gettid) << 32; }
