/*
 * Runs pieces of code from given states and tells what they did, on and on: descriptor 3 is
 * a shared file (struct shared), a byte from descriptor 4 says that jobs are in it, a byte to
 * descriptor 5 that they are done. Descriptor 6 is a file for code, which is mapped twice:
 * what runs can not write it.
 *
 * A job says what stands where, and the registers to begin with. It ends with a signal: a
 * breakpoint, with which all else is filled, a fault, or 4 to 8 ms of CPU time. The signals
 * of faults and SIGTRAP go through the resident handler (internal/arch/amd64/handler.go), whose tables
 * are part of the job, so that what is told is what a probed program's own handler would see.
 * No system call is made from anywhere but this program and the resident handler: seccomp
 * turns others into SIGSYS, and the job ends.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include "bare.h"

enum { SIGPROF = 27, JOBS = 256, PIECES = 8, BLOB = 6144 };

struct piece { u64 to, off, len; };

struct job {
	u64 regs[16]; /* by the number that instructions encode */
	u64 flags, pc;
	u64 seed, memory;  /* of vector registers, and of memory */
	u64 skip;          /* how many jobs behind this one are not run if its time is up */
	u64 keep, scratch; /* below keep the stack is filled from scratch, and not looked at */
	u64 npieces;
	struct piece pieces[PIECES];
	u64 tables[4]; /* of faults and traps: where, how many */
	u8 blob[BLOB]; /* contents of the pieces */
};

struct result {
	u64 regs[16];
	u64 flags, pc, sig, code, addr, nr;
	u64 cs, segments, fs, gs;
	u64 vec[5]; /* x87; MXCSR and XMM; YMM; masks; ZMM */
	u64 data, stack;
	u64 dataslot, stackslot; /* the same without the 8 bytes below the stack pointer */
	u64 hits, traps, all; /* hits of the first probe; of all */
};

/* fuzz_runner_linux_amd64_test.go has these structures and areas too. */
struct shared {
	u64 njobs, done, cpu;
	u64 base; /* what the areas are counted from */
	u64 returns; /* half of what is branched to returns */
	u64 fault, trap, handlerlen;
	u64 ringlen, hits, step, head; /* addresses of the first counter and of a shard's head */
	u8 handler[4000];
	struct job jobs[JOBS];
	struct result results[JOBS];
};

enum { CODE, NEAR, FAR, AREAS };
enum { AREA_LEN = 0x2000, LAND_LEN = 0x10000, DATA_LEN = 0x4000, STACK_LEN = 0x4000, ACTION = 40, PROBES = 4 };
#define LAND 0x20000000ull
#define DATA 0x30000000ull
#define STACK 0x38000000ull
#define HOME 0x6b0000000000ull /* the resident handler, its tables, the dispositions it finds */
#define TABLES (HOME + 0x4000)
#define ACTIONS (HOME + 0x8000)
#define HOME_LEN 0xc000
#define RING 0x6c0000000000ull
static const u64 area[AREAS] = { 0x10000000, 0x50000000, 0x200000000 };

static struct shared *sh;
static u8 *alias[AREAS];
static u64 current, ticks;
static u64 traps __attribute__((used)), fault_handler __attribute__((used)), trap_handler __attribute__((used));
static u64 nextflags __attribute__((used)); /* sigreturn takes ID and NT from where it is called */
static u8 altstack[1 << 18] __attribute__((aligned(64)));
static int started;

static u64 word(u64 *s, int i)
{
	u64 v = rnd(s);
	switch (i % 4) {
	case 0: return sh->base + LAND + (v & (LAND_LEN - 1) & ~7ull);
	case 1: return sh->base + DATA + DATA_LEN / 4 + (v & (DATA_LEN / 2 - 1) & ~7ull);
	case 2: return v & 0x3f;
	}
	return v;
}

static void fill_memory(const struct job *j)
{
	u64 s = j->memory, *w = (u64 *)(sh->base + DATA);
	for (int i = 0; i < DATA_LEN / 8; i++)
		w[i] = word(&s, i);
	w = (u64 *)(sh->base + STACK);
	for (int i = 0; i < STACK_LEN / 8; i++) {
		u64 v = word(&s, i & 15 ? i & ~3 : 3); /* mostly places to return to */
		w[i] = (u64)&w[i] < j->keep ? j->scratch * (2 * i + 1) : v;
	}
}

/* In one of eight jobs some exceptions of x87 and SSE are not masked. */
static void set_vectors(u8 *fp, u64 seed)
{
	u64 s = seed ^ 0x3333333333333333ull, v = rnd(&s) >> 20;
	fill_vectors(fp, seed);
	if (v & 7)
		return;
	fp[0] &= ~(v >> 8 & 0x3d);
	fp[25] &= ~(v >> 16 & 0x1e);
}

static void tell_vectors(struct result *o, u8 *fp)
{
	static const int of[] = { 2, 2, 3, 4, 4 };
	o->vec[0] = mix(*(uint32_t *)fp | (u64)fp[4] << 32, fp + 32, 128); /* without the last opcode */
	o->vec[1] = mix(fp[24] | fp[25] << 8, fp + 160, 256);
	o->vec[2] = o->vec[3] = o->vec[4] = 1;
	for (int c = 2; c < 8; c++)
		if (have >> c & 1) {
			u64 *h = &o->vec[c == 2 ? 2 : of[c - 3]];
			*h = mix(*h, fp + place[c].off, place[c].len);
		}
}

/* Code outside what runs is int3. */
static u8 *code_at(u64 addr)
{
	for (int a = 0; a < AREAS; a++)
		if (addr - sh->base - area[a] < AREA_LEN)
			return alias[a] + (addr - sh->base - area[a]);
	return (void *)0;
}

static void put_pieces(const struct job *j, int remove)
{
	for (u64 i = 0; i < j->npieces; i++) {
		const struct piece *p = &j->pieces[i];
		u8 *to = code_at(p->to);
		if (!to)
			copy((void *)p->to, j->blob + p->off, p->len);
		else if (remove)
			fill(to, 0xcc, p->len);
		else
			copy(to, j->blob + p->off, p->len);
	}
}

static void segments(struct result *o)
{
	uint16_t ds, es, fs, gs;
	__asm__ volatile("mov %%ds, %0\n mov %%es, %1\n mov %%fs, %2\n mov %%gs, %3" : "=r"(ds), "=r"(es), "=r"(fs), "=r"(gs));
	o->segments = ds | (u64)es << 16 | (u64)fs << 32 | (u64)gs << 48;
	sys(158, 0x1003, (u64)&o->fs, 0, 0, 0, 0);
	sys(158, 0x1004, (u64)&o->gs, 0, 0, 0, 0);
}

static u64 without(u64 lo, u64 len, u64 from, u64 slot)
{
	u64 hole = slot - lo <= len - 8, saved = 0;
	if (hole) {
		copy(&saved, (void *)slot, 8);
		fill((void *)slot, 0, 8);
	}
	u64 h = mix(0, (void *)from, lo + len - from);
	if (hole)
		copy((void *)slot, &saved, 8);
	return h;
}

static void record(struct ucontext *uc, struct siginfo *si)
{
	struct result *o = &sh->results[current];
	const struct job *j = &sh->jobs[current];
	u64 data = sh->base + DATA, stack = sh->base + STACK;
	for (int i = 0; i < 16; i++)
		o->regs[i] = *reg(uc, i);
	o->flags = uc->eflags;
	o->pc = uc->rip;
	o->sig = si->signo;
	o->code = (unsigned)si->code;
	o->addr = si->addr;
	o->nr = si->signo == 31 ? *(u64 *)(&si->addr + 1) : 0;
	o->cs = uc->cs | (u64)uc->ss << 16;
	segments(o);
	tell_vectors(o, uc->fpstate);
	o->data = mix(0, (void *)data, DATA_LEN);
	o->stack = mix(0, (void *)j->keep, stack + STACK_LEN - j->keep);
	o->dataslot = without(data, DATA_LEN, data, uc->rsp - 8);
	o->stackslot = without(stack, STACK_LEN, j->keep, uc->rsp - 8);
	o->hits = *(u64 *)sh->hits;
	o->all = 0;
	for (int i = 0; i < PROBES; i++)
		o->all += *(u64 *)(sh->hits + i * sh->step);
	o->traps = traps;
	put_pieces(j, 1);
}

static void prepare(struct ucontext *uc)
{
	const struct job *j = &sh->jobs[current];
	fill_memory(j);
	set_vectors(uc->fpstate, j->seed);
	put_pieces(j, 0);
	copy((void *)TABLES, j->tables, sizeof j->tables);
	__asm__ volatile("mov %0, %%ds\n mov %0, %%es\n mov %0, %%fs\n mov %0, %%gs" : : "r"(0));
	sys(158, 0x1002, sh->base + DATA + DATA_LEN / 2, 0, 0, 0, 0); /* ARCH_SET_FS */
	sys(158, 0x1001, sh->base + DATA + DATA_LEN / 2, 0, 0, 0, 0); /* ARCH_SET_GS */
	for (int i = 0; i < 16; i++)
		*reg(uc, i) = j->regs[i];
	uc->eflags = j->flags;
	nextflags = j->flags & 0x204000;
	uc->rip = j->pc;
	uc->cs = 0x33, uc->ss = 0x2b;
	for (int i = 0; i < PROBES; i++)
		*(u64 *)(sh->hits + i * sh->step) = 0;
	*(u64 *)sh->head = traps = ticks = 0;
}

static void wait_for_jobs(void)
{
	u8 b = 1;
	if (started > 1 && sys(1, 5, (u64)&b, 1, 0, 0, 0) != 1)
		quit(20);
	started = 2;
	if (sys(0, 4, (u64)&b, 1, 0, 0, 0) != 1)
		quit(0);
	current = 0;
}

__attribute__((used)) void on_signal(int sig, struct siginfo *si, struct ucontext *uc)
{
	nextflags = uc->eflags & 0x204000;
	if (sig == SIGPROF && ++ticks < 2)
		return;
	if (!started) {
		started = 1;
		/* sw_reserved of the legacy area: magic, size, features */
		if (*(uint32_t *)(uc->fpstate + 464) == 0x46505853)
			find_components(*(u64 *)(uc->fpstate + 472));
		wait_for_jobs();
	} else {
		record(uc, si);
		u64 skip = sig == SIGPROF ? sh->jobs[current].skip : 0;
		for (current++; skip && current < sh->njobs; skip--)
			sh->results[current++].sig = SIGPROF;
	}
	sh->done = current;
	if (current == sh->njobs)
		wait_for_jobs();
	sh->done = current;
	prepare(uc);
}

/*
 * What ran may have left alignment checks or traps on. Who called the handler may wait for its
 * return (Handler's mapBack): it goes back to the kernel by itself.
 */
__asm__(
	".text\n"
	"entry: push %rdx\n\tpushq $2\n\tpopfq\n\tmov %rsp, %rbx\n\tand $-16, %rsp\n\tcall on_signal\n\t"
	"mov (%rbx), %rsp\n\tpushq nextflags(%rip)\n\tpopfq\n\tmov $15, %eax\n\tsyscall\n"
	"on_fault: jmp *fault_handler(%rip)\n"
	"on_trap: incq traps(%rip)\n\tjmp *trap_handler(%rip)\n"
	"restore: movl $15, %eax\n\tsyscall\n"
	".globl _start\n"
	"_start: andq $-16, %rsp\n\tcall begin\n");
#define CODE_OF(f) extern void f(int, void *, void *) __attribute__((visibility("hidden")))
CODE_OF(entry);
CODE_OF(on_fault);
CODE_OF(on_trap);
extern void restore(void) __attribute__((visibility("hidden")));

enum { PRIVATE = 0x100022, SHARED = 0x100001 }; /* fixed without replacing */

static void areas(u64 base, int fd)
{
	for (int a = 0; a < AREAS; a++) {
		u64 off = a * AREA_LEN;
		long p = sys(9, 0, AREA_LEN, 3, 1, fd, off);
		if (p < 0 && p > -4096)
			quit(15);
		alias[a] = (u8 *)p;
		fill(alias[a], 0xcc, AREA_LEN);
		if (sys(9, base + area[a], AREA_LEN, 5, SHARED, fd, off) != (long)(base + area[a]))
			quit(16);
	}
	fill(map(base + LAND, LAND_LEN, 3, PRIVATE, -1), 0xcc, LAND_LEN);
	if (sh->returns)
		fill((u8 *)(base + LAND + LAND_LEN / 2), 0xc3, LAND_LEN / 2);
	sys(10, base + LAND, LAND_LEN, 5, 0, 0, 0);
	map(base + DATA, DATA_LEN, 3, PRIVATE, -1);
	map(base + STACK, STACK_LEN, 3, PRIVATE, -1);
}

static void handle(int sig, void (*f)(int, void *, void *))
{
	struct kernel_sigaction sa = { f, SA_SIGINFO | SA_RESTORER | SA_ONSTACK, restore, { ~0ull } };
	struct kernel_sigaction own = { entry, SA_SIGINFO | SA_RESTORER | SA_ONSTACK, restore, { ~0ull } };
	copy((void *)(ACTIONS + sig * ACTION + 8), &own, sizeof own);
	if (sys(13, sig, (u64)&sa, 0, 8, 0, 0) < 0)
		quit(13);
}

static void handlers(void)
{
	static const int faults[] = { 4, 7, 8, 11 };
	map(HOME, HOME_LEN, 3, PRIVATE, -1);
	copy((void *)HOME, sh->handler, sh->handlerlen);
	sys(10, HOME, 0x4000, 5, 0, 0, 0);
	fault_handler = sh->fault, trap_handler = sh->trap;
	for (int i = 0; i < 4; i++)
		handle(faults[i], on_fault);
	handle(5, on_trap);
	handle(SIGPROF, entry);
	handle(31, entry);
}

static void jail(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4), /* arch */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc000003e, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 12), /* instruction pointer, high */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x6a00, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, HOME >> 32, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { sizeof code / sizeof *code, code };
	if (sys(157, 38, 1, 0, 0, 0, 0) || sys(157, 22, 2, (u64)&prog, 0, 0, 0))
		quit(17);
}

__attribute__((used)) void begin(void)
{
	struct stack ss = { altstack, 0, sizeof altstack };
	u64 timer[4] = { 0, 4000, 0, 4000 }, cpu;
	sh = map(0, sizeof *sh, 3, 1, 3);
	map(RING, sh->ringlen, 3, PRIVATE, -1);
	areas(sh->base, 6);
	cpu = 1ull << (sh->cpu & 63);
	sys(203, 0, sizeof cpu, (u64)&cpu, 0, 0, 0); /* stay on one CPU */
	sys(131, (u64)&ss, 0, 0, 0, 0, 0);
	handlers();
	jail();
	sys(38, 2, (u64)timer, 0, 0, 0, 0); /* ITIMER_PROF */
	__asm__ volatile("int3");
	quit(14);
}
