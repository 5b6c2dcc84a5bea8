// Threads whose FS base is not that of a block of their own.
//
//	fsbase           commands: zero N, other N FILL, copy N, share N, spawn N, child N, create N, name TEXT, quit
//
// Each command calls hit, which is counted. "zero" calls it N times in a thread that has set its FS base
// to 0, "other" with one that leads to memory filled with the byte FILL, "copy" with one that leads to a copy
// of the thread's block, whose own address is in it. "share" makes four threads by clone without CLONE_SETTLS,
// which share the block of the one that made them, and call hit N times each. "spawn" starts N programs by
// posix_spawn. "child" has a child of vfork call hit N times, while another thread does so too. "create"
// makes N threads, each of which calls hit once. "name" gives the thread that reads commands a name, and has it call
// hit once. "spoilt" counts bytes of the memory above that changed.
// With -DINLINE the base is set by wrfsbase, and threads are made by a syscall instruction here.
#include "prog.h"
#include <asm/prctl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { AROUND = 16384, SHARERS = 4, STACK = 1 << 16 };

static uint64_t hits, spoilt, calls;
static unsigned char memory[2 * AROUND] __attribute__((aligned(4096))), before[2 * AROUND];
static char stacks[SHARERS][STACK] __attribute__((aligned(16)));
static int running;

// hit is 3*v+1.
uint64_t hit(uint64_t v);
__asm__(".text\n.p2align 4\n.globl hit\n.type hit, @function\nhit:\n"
	" lea 1(%rdi,%rdi,2), %rax\n nop\n ret\n.size hit, .-hit\n.p2align 4\n");

#define BARE __attribute__((noinline, optimize("no-stack-protector")))

static BARE void loop(uint64_t n) {
	for (uint64_t i = 0; i < n; i++)
		hit(i);
	__atomic_add_fetch(&hits, n, __ATOMIC_RELAXED);
}

static BARE void set_base(uint64_t base) {
#ifdef INLINE
	__asm__ volatile("wrfsbase %0" ::"r"(base) : "memory");
#else
	syscall(SYS_arch_prctl, ARCH_SET_FS, base);
#endif
}

static uint64_t base_now(void) {
	uint64_t base;
	syscall(SYS_arch_prctl, ARCH_GET_FS, &base);
	return base;
}

static uint64_t with; // the base for the next thread

static BARE void *elsewhere(void *arg) {
	uint64_t own = base_now(), n = calls;
	set_base(with);
	loop(n);
	set_base(own);
	return arg;
}

static BARE void *forged(void *arg) {
	uint64_t own = base_now(), n = calls;
	memcpy(memory + AROUND - 256, (char *)own - 256, 4096 + 256 - 1024);
	with = (uint64_t)memory + AROUND;
	((uint64_t *)with)[0] = ((uint64_t *)with)[2] = with;
	memcpy(before, memory, sizeof memory);
	set_base(with);
	loop(n);
	set_base(own);
	return arg;
}

static void compare(void) {
	for (size_t i = 0; i < sizeof memory; i++)
		spoilt += memory[i] != before[i];
}

static int sharer(void *arg) {
	loop((uint64_t)arg);
	__atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
	return 0;
}

#ifdef INLINE
static long clone_here(int flags, void *stack, uint64_t n) {
	long r;
	((uint64_t *)stack)[-1] = n;
	stack = (uint64_t *)stack - 2;
	__asm__ volatile("mov $56, %%eax\n syscall\n test %%rax, %%rax\n jnz 1f\n"
			 " mov 8(%%rsp), %%rdi\n and $-16, %%rsp\n call sharer_entry\n"
			 "1:"
			 : "=&a"(r)
			 : "D"((long)flags), "S"(stack), "d"(0L)
			 : "rcx", "r11", "memory");
	return r;
}

__attribute__((used)) static void sharer_entry(uint64_t n) {
	sharer((void *)n);
	syscall(SYS_exit, 0);
}
#endif

static void share(uint64_t n) {
	const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	running = SHARERS;
	for (int i = 0; i < SHARERS; i++) {
#ifdef INLINE
		if (clone_here(flags, stacks[i] + STACK, n) < 0)
#else
		if (clone(sharer, stacks[i] + STACK, flags, (void *)n) < 0)
#endif
			die("clone");
	}
	while (__atomic_load_n(&running, __ATOMIC_SEQ_CST))
		usleep(1000);
}

static void spawn(uint64_t n) {
	char *argv[] = {"true", NULL}, *env[] = {NULL};
	for (uint64_t i = 0; i < n; i++) {
		pid_t pid;
		if (posix_spawn(&pid, "/bin/true", NULL, NULL, argv, env) || waitpid(pid, NULL, 0) != pid)
			die("posix_spawn");
	}
}

static void *beside(void *arg) {
	loop((uint64_t)arg);
	return arg;
}

static __attribute__((noinline)) void child(uint64_t n) {
	pthread_t t[2] = {start(beside, (void *)n), start(beside, (void *)n)};
	pid_t pid = vfork();
	if (pid == 0) {
		loop(n);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, NULL, 0) != pid)
		die("vfork");
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
}

static void fill(int byte) {
	memset(memory, byte, sizeof memory);
	memcpy(before, memory, sizeof memory);
}

static void run(void *(*f)(void *)) {
	pthread_join(start(f, NULL), NULL);
	compare();
}

static void report(void) {
	say("{\"hit\":%" PRIu64 ",\"spoilt\":%" PRIu64 "}", hits, spoilt);
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		const char *arg = strchr(line, ' ');
		if (is(line, "name") && arg) {
			pthread_setname_np(pthread_self(), arg + 1);
			loop(1);
			report();
			continue;
		}
		calls = arg ? strtoull(arg, (char **)&arg, 0) : 1;
		if (is(line, "zero")) {
			fill(0);
			with = 0;
			run(elsewhere);
		} else if (is(line, "other")) {
			fill((int)strtol(arg, NULL, 0));
			with = (uint64_t)memory + AROUND;
			run(elsewhere);
		} else if (is(line, "copy")) {
			fill(0);
			run(forged);
		} else if (is(line, "share")) {
			share(calls);
		} else if (is(line, "spawn")) {
			spawn(calls);
		} else if (is(line, "child")) {
			child(calls);
		} else if (is(line, "create")) {
			for (uint64_t i = 0; i < calls; i++)
				pthread_join(start(beside, (void *)1), NULL);
		}
		report();
	}
	report();
	return 0;
}
