// A thread that stands inside a function's first bytes until it is told to go on.
//
//	stand [mask]     commands: in, behind, out, go N, count, quit
//
// The second instruction of stand reads the byte that its argument points to. "in" has a new
// thread call it with a bad pointer: the handler of SIGSEGV interrupts it there and waits.
// "behind" has one jump to behind, whose first instruction has five bytes, with a bad stack
// pointer: it stands at the second one, the ret. "out" has the handler give the instruction a
// good pointer and return; the thread ends. "go N" calls stand, behind, first, second and third N
// times each, with good pointers. With "mask" the handler blocks all signals.
#include "prog.h"
#include <ucontext.h>

static struct {
	uint64_t stand, behind, first, second, third, bad;
} n;
static const char good = 7;
static int waits[2], gone[2];
static pthread_t standing;

// stand(p) is *p + 1.
uint64_t stand(const char *p);
__asm__(".text\n.p2align 4\n.globl stand\n.type stand, @function\nstand:\n"
	" xor %eax, %eax\n mov (%rdi), %al\n add $1, %rax\n nop\n ret\n.size stand, .-stand\n.p2align 4\n");

// behind is 8. No room is left behind its ret.
uint64_t behind(void);
// fall is behind, whose ret finds no stack.
uint64_t fall(void);
extern const char behind_ret[], fallen[];
__asm__(".text\n.p2align 4\n.globl behind\n.type behind, @function\nbehind:\n"
	" mov $8, %eax\nbehind_ret: ret\n.size behind, .-behind\n"
	".globl fall\n.type fall, @function\nfall:\n"
	" push %rbx\n sub $16, %rsp\n mov %rsp, %rbx\n mov $8, %esp\n jmp behind\n"
	"fallen: add $8, %rsp\n pop %rbx\n ret\n.size fall, .-fall\n.p2align 4\n");

NOINLINE uint64_t first(uint64_t v) {
	return v * 3 + 1;
}

NOINLINE uint64_t second(uint64_t v) {
	return v * 5 + 2;
}

NOINLINE uint64_t third(uint64_t v) {
	return v * 7 + 3;
}

static void handler(int sig, siginfo_t *si, void *ctx) {
	char c = 1;
	(void)sig;
	(void)si;
	if (write(waits[1], &c, 1) != 1)
		_exit(4);
	while (read(gone[0], &c, 1) != 1)
		if (errno != EINTR)
			_exit(4);
	greg_t *r = ((ucontext_t *)ctx)->uc_mcontext.gregs;
	if (r[REG_RSP] == 8) {
		r[REG_RSP] = r[REG_RBX];
		*(const char **)r[REG_RSP] = fallen;
	} else {
		r[REG_RDI] = (greg_t)&good;
	}
}

static void one(const char *p) {
	if (stand(p) != 8)
		__atomic_add_fetch(&n.bad, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&n.stand, 1, __ATOMIC_RELAXED);
}

static void *badly(void *arg) {
	one((const char *)8);
	return arg;
}

static void *falls(void *arg) {
	static char room[1 << 16];
	stack_t alt = {.ss_sp = room, .ss_size = sizeof room};
	sigaltstack(&alt, NULL);
	if (fall() != 8)
		__atomic_add_fetch(&n.bad, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&n.behind, 1, __ATOMIC_RELAXED);
	return arg;
}

static void go(uint64_t calls) {
	for (uint64_t i = 0; i < calls; i++) {
		one(&good);
		n.bad += behind() != 8;
		n.behind++;
		n.bad += first(i) != i * 3 + 1;
		n.bad += second(i) != i * 5 + 2;
		n.bad += third(i) != i * 7 + 3;
		n.first++;
		n.second++;
		n.third++;
	}
}

static void report(void) {
	say("{\"stand\":%" PRIu64 ",\"behind\":%" PRIu64 ",\"first\":%" PRIu64 ",\"second\":%" PRIu64 ",\"third\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
	    n.stand, n.behind, n.first, n.second, n.third, n.bad);
}

int main(int argc, char **argv) {
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	char line[256], c;
	if (argc > 1 && strcmp(argv[1], "mask") == 0)
		sigfillset(&sa.sa_mask);
	if (pipe(waits) || pipe(gone) || sigaction(SIGSEGV, &sa, NULL))
		die("pipe");
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "in") || is(line, "behind")) {
			standing = start(is(line, "in") ? badly : falls, NULL);
			while (read(waits[0], &c, 1) != 1)
				if (errno != EINTR)
					die("read");
		} else if (is(line, "out")) {
			if (write(gone[1], &c, 1) != 1)
				die("write");
			pthread_join(standing, NULL);
		} else if (is(line, "go")) {
			go(number(line, "go", 1));
		}
		report();
	}
	report();
	return 0;
}
