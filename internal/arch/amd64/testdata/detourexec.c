/*
 * Runs functions with and without probes in an arena whose contents the test wrote.
 *
 * With no argument: prints the offsets, from the FS base, of the restartable sequence and
 * of the word that stands for Go's current goroutine, and the address of a way to the
 * arena's gate that is out of the arena's reach.
 * Else: file of the arena. It is mapped shared at ARENA; the test reads from it what came
 * of it. All runs are made one after the other, in the middle of what the mode says.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

typedef uint64_t u64;
typedef uint8_t u8;

#define ARENA 0x500000000000ull

enum { PLAIN, STORM, STEPS };
enum { DEFAULT, HANDLED, ONCE, IGNORED };

struct sigact { u64 handler, flags, restorer, mask; };

/* detour_exec_test.go has these two structures too. */
struct run {
	u64 regs[16]; /* by the number that instructions encode */
	u64 flags;
	u64 pc;
	u64 out[16];
	u64 outflags, stack; /* of the stack, and of the vector registers, a hash */
	u64 like; /* a run that must come out the same, 0: this one has no probe */
};

struct control {
	u64 nruns, runs;           /* their number and address */
	u64 mode;
	u64 hole;                  /* a page without access, 0: none */
	u64 fault, trap, restorer; /* the resident handler, 0: none */
	u64 nested;                /* address of the run that signals make */
	u64 rounds;                /* STORM: at least so many nested runs */
	u64 places, nplaces;       /* STEPS: addresses to be interrupted at */
	u64 blocked;               /* SIGSEGV and SIGBUS are blocked: 1 always, 2 in every other run, and in handlers */
	u64 tid, landing;          /* out: of the thread; what functions return to */
	u64 did;                   /* out: runs with a probe, nested ones apart */
	u64 didnested;             /* out */
	u64 wrong;                 /* out: runs that came out otherwise */
	u64 bad;                   /* out: the run */
	u64 spoilt;                /* address of a place for what came of it */
	u64 app, actions;          /* the program's own disposition, and where the handler finds it */
	u64 send;                  /* SIGSEGV is sent: 1 before the runs, 2 at each of the places instead of a nested run */
	u64 repair;                /* rdi as the program's handler leaves it */
	u64 g;                     /* what the thread's word for Go holds */
	u64 jail;                  /* asking for the signal mask kills */
	u64 free;                  /* registers that a run may leave otherwise, 1<<16: the flags */
	u64 handled, pc, addr, alt; /* out: what the program's handler saw */
	u64 gs;                    /* the GS base; 0: as it is */
	u64 low;                   /* a second place for the arena, 0: none */
	u64 user_end;              /* addresses below are a user's to the functions of a kernel */
	u64 called;                /* out: calls of those */
	u64 context;               /* address of a count whose bit 16 a signal sets, as an interrupt does */
	u64 stepping;              /* out: faults of which the program's handler saw a trap flag */
	u64 stubs, nstubs;         /* STEPS: at each of the places addresses of these stubs are put back instead of a nested run */
	u64 stub_word;             /* how far behind a stub its word is */
	u64 search, search_end;    /* memory in which they are put back, besides the stack */
};

static struct control *ctl;
static __thread u64 current_g; /* as Go's runtime has one */
static __thread struct { unsigned start; int cpu; u64 cs[3]; } unregistered = { 0, -1, { 0 } }; /* as an area is for rseq(2) before it is registered */

static u64 host, current, target, spare[2];

/*
 * What FXSAVE stores (SDM volume 1, 10.5.1): what all runs begin with, and what the last one has left. Words 1 and 2 say where an x87 instruction
 * stood, and those behind XMM15 are not defined.
 */
enum { VECTOR = 52 };
static u64 vector[64] __attribute__((aligned(16))), vectored[64] __attribute__((aligned(16)));
static const uint32_t mxcsr __attribute__((used)) = 0x1f80;

/* The state of the run, jumped to with its own stack; it returns to landing. */
void enter(struct run *r);
void landing(void);
__asm__(
	".text\n"
	"enter: push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	"mov %rsp, host(%rip)\n mov %rdi, current(%rip)\n"
	"mov 136(%rdi), %rax\n mov %rax, target(%rip)\n fxrstor64 vector(%rip)\n"
	"pushq 128(%rdi)\n popfq\n mov 32(%rdi), %rsp\n"
	"mov 0(%rdi), %rax\n mov 8(%rdi), %rcx\n mov 16(%rdi), %rdx\n mov 24(%rdi), %rbx\n"
	"mov 40(%rdi), %rbp\n mov 48(%rdi), %rsi\n"
	"mov 64(%rdi), %r8\n mov 72(%rdi), %r9\n mov 80(%rdi), %r10\n mov 88(%rdi), %r11\n"
	"mov 96(%rdi), %r12\n mov 104(%rdi), %r13\n mov 112(%rdi), %r14\n mov 120(%rdi), %r15\n"
	"mov 56(%rdi), %rdi\n"
	"jmp *target(%rip)\n"
	"landing: fxsave64 vectored(%rip)\n ldmxcsr mxcsr(%rip)\n mov %rdi, spare(%rip)\n mov current(%rip), %rdi\n"
	"mov %rax, 144(%rdi)\n mov %rcx, 152(%rdi)\n mov %rdx, 160(%rdi)\n mov %rbx, 168(%rdi)\n"
	"mov %rsp, 176(%rdi)\n mov %rbp, 184(%rdi)\n mov %rsi, 192(%rdi)\n"
	"mov %r8, 208(%rdi)\n mov %r9, 216(%rdi)\n mov %r10, 224(%rdi)\n mov %r11, 232(%rdi)\n"
	"mov %r12, 240(%rdi)\n mov %r13, 248(%rdi)\n mov %r14, 256(%rdi)\n mov %r15, 264(%rdi)\n"
	"mov spare(%rip), %rax\n mov %rax, 200(%rdi)\n"
	"mov host(%rip), %rsp\n pushfq\n popq 272(%rdi)\n cld\n"
	"pushfq\n andl $~0x40000, (%rsp)\n popfq\n"
	"pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");

/* Goes to GATE with a register that a gate may use. */
#define GATE "0x500000180000"
void far_gate(void);
__asm__("far_gate: movabs $" GATE ", %r11\n jmp *%r11\n");

/*
 * What a kernel has to read memory with: see arch.Kernel. What the convention lets a function
 * clobber is clobbered, and EFLAGS.AC too, as by stac and clac. The stack need not be aligned
 * to more than 8, and the direction flag must be clear.
 */
#define KERNEL(name) \
	".globl " name "\n" name ": push %rbp\n mov %rsp, %rbp\n and $-16, %rsp\n" \
	"sub $16, %rsp\n pushfq\n testl $0x400, (%rsp)\n jz 1f\n ud2\n1: andl $~0x40000, (%rsp)\n popfq\n" \
	"call do_" name "\n" \
	"mov %rbp, %rsp\n pop %rbp\n" \
	"mov $0xbad0bad0bad0bad, %rcx\n mov %rcx, %rdx\n mov %rcx, %rsi\n mov %rcx, %rdi\n" \
	"mov %rcx, %r8\n mov %rcx, %r9\n mov %rcx, %r10\n mov %rcx, %r11\n" \
	"cmp $7, %cl\n ret\n"

__asm__(KERNEL("read_kernel") KERNEL("read_user") KERNEL("string_kernel") KERNEL("string_user") KERNEL("length_user"));

void read_kernel(void);
void read_user(void);
void string_kernel(void);
void string_user(void);
void length_user(void);

/* Copies what can be read of n bytes and tells how many. */
static u64 peek(void *to, u64 from, u64 n)
{
	u64 done = 0;
	ctl->called++;
	while (done < n) {
		u64 at = from + done, left = 4096 - at % 4096, k = left < n - done ? left : n - done;
		struct iovec l = { (u8 *)to + done, k }, r = { (void *)at, k };
		if (process_vm_readv(getpid(), &l, 1, &r, 1, 0) != (ssize_t)k)
			break;
		done += k;
	}
	return done;
}

static long number(void *to, u64 from, u64 n)
{
	return peek(to, from, n) == n ? 0 : -14;
}

static int user(u64 from, u64 n) { return from < ctl->user_end && n <= ctl->user_end - from; }

long do_read_kernel(void *to, u64 from, u64 n) { return from < ctl->user_end ? -34 : number(to, from, n); }

long do_read_user(void *to, u64 from, u64 n) { return user(from, n) ? number(to, from, n) : -14; }

/* The length of the string with its NUL, at most n+1; 0: it faults before. */
static u64 measured(u8 *buf, u64 from, u64 n)
{
	u64 have = peek(buf, from, n), len = strnlen((char *)buf, have);
	return len < have ? len + 1 : have == n ? n + 1 : 0;
}

static u8 piece[1 << 16];

/* Copies a string of n bytes at most, of which `most` are in the space. */
static long string(u8 *to, u64 from, u64 n, u64 most)
{
	u64 len = measured(piece, from, n < most ? n : most);
	if (!len || (len > most && most < n))
		return -14;
	len = len < n ? len : n;
	memcpy(to, piece, len);
	to[len - 1] = 0;
	return len;
}

long do_string_kernel(u8 *to, u64 from, long n)
{
	return from < ctl->user_end ? -34 : n <= 0 ? 0 : string(to, from, n, n);
}

long do_string_user(u8 *to, u64 from, long n)
{
	return from >= ctl->user_end ? -14 : n <= 0 ? 0 : string(to, from, n, ctl->user_end - from);
}

long do_length_user(u64 from, long n)
{
	if (from >= ctl->user_end)
		return 0;
	u64 most = ctl->user_end - from, len = measured(piece, from, (u64)n < most ? (u64)n : most);
	return len > most && most < (u64)n ? 0 : (long)len;
}

static u64 mix(const u64 *w, int n)
{
	u64 h = 0;
	for (int i = 0; i < n; i++)
		h = (h ^ w[i]) * 0x9e3779b97f4a7c15ull + (h >> 29);
	return h;
}

enum { ABOVE = 64, /* words of the stack that a run may look at */
	FLAGS = 0x40cd5 }; /* arithmetic flags, direction and alignment check */

static sigset_t faults; /* SIGSEGV and SIGBUS */

static void block(int on) { sigprocmask(on ? SIG_BLOCK : SIG_UNBLOCK, &faults, NULL); }

static void once(struct run *r)
{
	u64 *sp = (u64 *)r->regs[4];
	for (int i = 0; i < ABOVE; i++)
		sp[i] = (u64)sp * 31 + i * 0x0101010101010101ull;
	sp[0] = (u64)landing;
	sp[ABOVE - 1] = 0;
	enter(r);
	r->stack = mix(sp, ABOVE);
	if (!ctl->user_end) { /* those who read for a kernel are C here, and use what a kernel does not */
		vectored[1] = vectored[2] = 0;
		r->stack ^= mix(vectored, VECTOR);
	}
	const struct run *want = (const struct run *)r->like;
	if (!want)
		return;
	int differ = 0;
	for (int i = 0; i < 16; i++)
		differ |= r->out[i] != want->out[i] && !(ctl->free >> i & 1);
	if (differ || r->stack != want->stack ||
	    ((r->outflags ^ want->outflags) & FLAGS && !(ctl->free >> 16 & 1))) {
		ctl->wrong++;
		ctl->bad = (u64)r;
		*((struct run *)ctl->spoilt) = *r;
		_exit(30);
	}
}

/* A run in the middle of another. */
static void nest(void)
{
	u64 saved[] = { host, current, target, spare[0] }, left[VECTOR];
	struct run r;
	memcpy(left, vectored, sizeof left);
	memcpy(&r, (struct run *)ctl->nested, sizeof r);
	if (ctl->context)
		*(volatile uint32_t *)ctl->context += 1 << 16;
	once(&r);
	if (ctl->context)
		*(volatile uint32_t *)ctl->context -= 1 << 16;
	ctl->didnested++;
	host = saved[0], current = saved[1], target = saved[2], spare[0] = saved[3];
	memcpy(vectored, left, sizeof left);
}

static void on_alarm(int sig) { (void)sig; nest(); }

static u64 planted;
static u8 was;

/* Puts back a return address that is replaced, as a tracer does that takes all out. */
static u64 real(u64 v)
{
	for (u64 i = 0; i < ctl->nstubs; i++) {
		const u64 at = ((u64 *)ctl->stubs)[i];
		if (v == at && *(u64 *)(at + ctl->stub_word))
			return real(*(u64 *)(at + ctl->stub_word));
	}
	return v;
}

static void put_back(greg_t *regs)
{
	for (int i = REG_R8; i <= REG_RIP; i++)
		regs[i] = (greg_t)real((u64)regs[i]);
	const u64 *top = (u64 *)((struct run *)current)->regs[4];
	for (u64 *sp = (u64 *)regs[REG_RSP]; sp <= top; sp++)
		*sp = real(*sp);
	for (u64 *at = (u64 *)ctl->search; at < (u64 *)ctl->search_end; at++)
		*at = real(*at);
	ctl->didnested++;
}

static void on_trap(int sig, siginfo_t *si, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	(void)sig, (void)si;
	*(u8 *)planted = was;
	if ((u64)regs[REG_RIP] == planted + 1) /* else the kernel has aborted a sequence */
		regs[REG_RIP]--;
	if (ctl->send == 2) {
		raise(SIGSEGV); /* taken when this handler has returned, at the place */
		ctl->didnested++;
		return;
	}
	if (ctl->nstubs)
		put_back(regs);
	else
		nest();
}

static void handle(int sig, u64 handler, u64 restorer)
{
	struct sigact a = { handler, SA_SIGINFO | 0x04000000 | SA_ONSTACK, restorer, 0 };
	if (handler && syscall(SYS_rt_sigaction, sig, &a, NULL, 8))
		exit(20);
}

static u8 alternate[1 << 16];

/* The program's own handler of a fault. */
static void on_fault(int sig, siginfo_t *si, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	ctl->handled++;
	ctl->stepping += regs[REG_EFL] >> 8 & 1;
	ctl->pc = regs[REG_RIP];
	ctl->addr = (u64)si->si_addr;
	ctl->alt = (u64)((u8 *)&regs - alternate) < sizeof alternate && sig == si->si_signo;
	if (ctl->repair)
		regs[REG_RDI] = ctl->repair;
}

/* What an attach saves of the program's dispositions. */
static void app(void)
{
	struct sigact *a = (struct sigact *)(ctl->actions + SIGSEGV * 40 + 8);
	if (ctl->app == IGNORED)
		a->handler = 1;
	else if (ctl->app != DEFAULT)
		a->handler = (u64)on_fault;
	a->flags = SA_SIGINFO | SA_ONSTACK | (ctl->app == ONCE ? SA_RESETHAND : 0);
}

static void all(void)
{
	struct run *n = (struct run *)ctl->nested;
	if (n && !ctl->did)
		once((struct run *)n->like);
	struct run *r = (struct run *)ctl->runs;
	for (u64 i = 0; i < ctl->nruns; i++) {
		if (ctl->blocked == 2)
			block(i >> 1 & 1);
		once(&r[i]);
		ctl->did += r[i].like != 0;
	}
}

static void storm(void)
{
	struct sigaction a = { .sa_handler = on_alarm };
	struct itimerval on = { { 0, 100 }, { 0, 100 } }, off = { 0 };
	if (ctl->blocked == 2)
		a.sa_mask = faults;
	sigaction(SIGALRM, &a, NULL);
	all();
	setitimer(ITIMER_REAL, &on, NULL);
	while (ctl->didnested < ctl->rounds)
		all();
	setitimer(ITIMER_REAL, &off, NULL);
}

static void steps(void)
{
	struct sigaction a = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
	const u64 *at = (u64 *)ctl->places;
	if (ctl->blocked == 2 || ctl->send == 2)
		a.sa_mask = faults;
	sigaction(SIGTRAP, &a, NULL);
	all();
	for (u64 i = 0; i < ctl->nplaces; i++) {
		planted = at[i], was = *(u8 *)planted;
		*(u8 *)planted = 0xcc;
		all();
		*(u8 *)planted = was;
	}
}

static int jail(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { sizeof code / sizeof *code, code };
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

int main(int argc, char **argv)
{
	stack_t ss = { .ss_sp = alternate, .ss_size = sizeof alternate };
	struct stat st;
	if (argc < 2)
		return printf("%td %td %td %lu %lu %lu %lu %lu %lu\n", __rseq_offset, (u8 *)&current_g - (u8 *)__builtin_thread_pointer(),
			      (u8 *)&unregistered - (u8 *)__builtin_thread_pointer(),
			      (u64)far_gate, (u64)read_kernel, (u64)read_user, (u64)string_kernel, (u64)string_user, (u64)length_user) < 0;
	int fd = open(argv[1], O_RDWR);
	if (fd < 0 || fstat(fd, &st) ||
	    mmap((void *)ARENA, st.st_size, 7, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) != (void *)ARENA)
		return 10;
	ctl = (struct control *)ARENA;
	if (ctl->low && mmap((void *)ctl->low, st.st_size, 7, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) != (void *)ctl->low)
		return 13;
	if (ctl->gs && syscall(SYS_arch_prctl, 0x1001 /* ARCH_SET_GS */, ctl->gs))
		return 14;
	ctl->tid = syscall(SYS_gettid);
	ctl->landing = (u64)landing;
	__asm__("fxsave64 %0" : "=m"(vector));
	vector[3] = (vector[3] & ~0xffffffffull) | 0x5f80; /* numbers are rounded up */
	for (int i = 20; i < VECTOR; i++) /* XMM0 to XMM15 */
		vector[i] = i * 0x9e3779b97f4a7c15ull;
	if (ctl->hole && mprotect((void *)ctl->hole, 4096, PROT_NONE))
		return 11;
	handle(SIGSEGV, ctl->fault, ctl->restorer);
	handle(SIGBUS, ctl->fault, ctl->restorer);
	handle(SIGFPE, ctl->fault, ctl->restorer);
	handle(SIGILL, ctl->fault, ctl->restorer);
	handle(SIGTRAP, ctl->trap, ctl->restorer);
	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	sigaddset(&faults, SIGBUS);
	if (ctl->blocked == 1)
		block(1);
	current_g = ctl->g;
	sigaltstack(&ss, NULL);
	if (ctl->actions)
		app();
	if (ctl->send == 1)
		raise(SIGSEGV);
	if (ctl->jail && jail())
		return 12;
	switch (ctl->mode) {
	case STORM: storm(); break;
	case STEPS: steps(); break;
	default: all();
	}
	return 0;
}
